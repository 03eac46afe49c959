// server/graph/leaf_guards.cpp: a hook a parameter, which costs nothing but where LibTorch's engine
// runs.
#include "server/graph/leaf_guards.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>

#include "base/check.h"
#include "server/graph/special_nodes.h"
#include "server/running/execution_scope.h"
#include "server/running/inside_node.h"
#include "server/running/leaf_hooks.h"

namespace smp::server {
namespace {

/// True if the body itself has begun the backward pass that runs.
bool begun_by_body() noexcept {
  const auto* scope = ExecutionScope::current();
  return LeafHooks::current() == nullptr && scope != nullptr && scope->identity().module == kBody &&
         !scope->inside_call() && scope->identity().phase == schedule::Phase::kForward &&
         !inside_own_node();
}

/// Returns who takes the gradients of a pass that was begun here; nullptr outside of steps.
OwnPasses* find_taker() noexcept {
  if (const auto* hooks = LeafHooks::current()) return &hooks->passes();
  const auto* scope = ExecutionScope::current();
  return scope == nullptr ? nullptr : scope->services().own_passes;
}

}  // namespace

torch::autograd::variable_list LeafGuard::operator()(
    const torch::autograd::variable_list& gradients) {
  SMP_REQUIRE(!begun_by_body(), "loss.backward() in the body of a step reached parameter ", path_,
              " of a DistributedModel. LibTorch's engine neither weights the loss of microbatch ",
              ExecutionScope::current()->identity().microbatch,
              " nor reaches other ranks. Call model.backward(loss) instead of loss.backward(), "
              "also for a part of the model, or a loss of its parameters alone");
  auto* const taker = find_taker();
  if (taker != nullptr && taker->take(leaf_, gradients.at(0))) return {at::Tensor()};
  return gradients;
}

void LeafGuards::add(const std::string& path, const at::Tensor& parameter) {
  using torch::autograd::isDifferentiableType;
  if (!parameter.is_leaf() || !isDifferentiableType(parameter.scalar_type())) return;
  // A frozen one has no node, and may be trained later.
  const bool trained = parameter.requires_grad();
  if (!trained) parameter.requires_grad_(true);
  auto leaf = torch::autograd::impl::grad_accumulator(parameter);
  if (!trained) parameter.requires_grad_(false);
  leaf->add_pre_hook(
      std::make_unique<LeafGuard>(path, static_cast<torch::autograd::AccumulateGrad&>(*leaf)));
  leaves_.push_back(std::move(leaf));
}

}  // namespace smp::server
