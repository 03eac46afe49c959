// api/distributed_optimizer.cpp: shrinking parameter groups to what this rank owns.
#include "smp/distributed_optimizer.h"

#include <torch/optim/lbfgs.h>

#include "base/check.h"

namespace smp::detail {

void follow_placement(std::shared_ptr<torch::optim::Optimizer> optimizer,
                      DistributedModelBase& model) {
  SMP_REQUIRE_AS(
      UnsupportedError, dynamic_cast<torch::optim::LBFGS*>(optimizer.get()) == nullptr,
      "smp::DistributedOptimizer: LBFGS looks at all parameters at once, but each rank "
      "has its own only; use an optimizer that works element by element (SGD, Adam, ...)");
  std::weak_ptr<torch::optim::Optimizer> weak = optimizer;
  model.on_placed([weak, &model] {
    const auto alive = weak.lock();
    if (!alive) return;
    for (auto& group : alive->param_groups()) {
      std::erase_if(group.params(),
                    [&](const at::Tensor& parameter) { return !model.owns(parameter); });
    }
  });
}

}  // namespace smp::detail
