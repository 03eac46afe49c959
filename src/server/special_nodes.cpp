// server/special_nodes.cpp: the nodes of ours that stand in an autograd graph.
#include <torch/csrc/autograd/functions/utils.h>

#include "base/check.h"
#include "d2d/tensor_data.h"
#include "server/executor.h"
#include "server/gradient_sum.h"

namespace smp::server {
namespace {

[[noreturn]] void refuse_stock_engine(const std::string& node) {
  throw UsageError(base::concat(
      "loss.backward() or torch::autograd::grad() reached ", node,
      ", a part of a DistributedModel that LibTorch's own engine cannot run: it would have to wait "
      "for other ranks. Call model.backward(loss) instead of loss.backward(); gradients with "
      "respect to "
      "chosen tensors (torch::autograd::grad) are not available across ranks."));
}

}  // namespace

variable_list AsyncNode::apply(variable_list&&) { refuse_stock_engine(name()); }

fiber::WaitReason AsyncNode::wait_reason() const { return {"a backward reply"}; }

variable_list GuardNode::apply(variable_list&&) { refuse_stock_engine("a model's output"); }

at::Tensor guard_output(const at::Tensor& output) {
  if (!output.defined() || !output.requires_grad()) return output;
  if (dynamic_cast<AsyncNode*>(output.grad_fn().get()) != nullptr) return output;
  const auto guard = c10::make_intrusive<GuardNode>();
  guard->set_next_edges(torch::autograd::collect_next_edges(output));
  auto guarded = d2d::detached(output);
  torch::autograd::set_history(guarded, guard);
  return guarded;
}

variable_list BoundaryInput::apply(variable_list&& gradients) {
  captured.resize(gradients.size());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    add_gradient(captured[i], std::move(gradients[i]));
  }
  return {};
}

c10::intrusive_ptr<BoundaryInput> make_boundary(std::vector<at::Tensor>& tensors,
                                                const TensorFlags& requires_grad) {
  SMP_ASSERT(tensors.size() == requires_grad.size(), tensors.size(), " tensors, ",
             requires_grad.size(), " flags");
  auto boundary = c10::make_intrusive<BoundaryInput>();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (requires_grad[i]) {
      torch::autograd::set_history(tensors[i], boundary);
    } else {
      boundary->add_input_metadata(Node::undefined_input{});
    }
  }
  return boundary;
}

}  // namespace smp::server
