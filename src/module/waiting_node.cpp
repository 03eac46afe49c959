// module/waiting_node.cpp: see the header.
#include "module/waiting_node.h"

#include "base/check.h"

namespace smp::module {

torch::autograd::variable_list SuspendingNode::apply(torch::autograd::variable_list&&) {
  throw UsageError(
      base::concat("loss.backward() or torch::autograd::grad() reached ", name(),
                   ", which has to wait for other ranks; LibTorch's own engine cannot do so. Call "
                   "model.backward(loss) instead of loss.backward(), in a step."));
}

}  // namespace smp::module
