// server/sums/leaf_update.cpp: the order of hooks is that of LibTorch's engine.
#include "server/sums/leaf_update.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <typeinfo>
#include <utility>

#include "server/graph/leaf_guards.h"
#include "server/values/tensor_memory.h"

namespace smp::server {
namespace {

/// Clones a gradient that would become `.grad` while somebody else can see its memory: otherwise
/// the next `+=` would change bytes that are in flight.
void own_storage(const at::Tensor& parameter, at::Tensor& gradient) {
  const bool steals = !parameter.grad().defined() && !at::GradMode::is_enabled();
  if (steals && gradient.defined() && gradient.layout() == at::kStrided && !is_alone(gradient)) {
    gradient = gradient.clone();
  }
}

/// Unfreezes a leaf while it lives, because a frozen leaf takes no gradient. Whether it should take
/// this one was decided when the gradient came; another microbatch may have frozen it for itself
/// since.
class Unfrozen {
 public:
  explicit Unfrozen(const at::Tensor& leaf) : leaf_(leaf), frozen_(!leaf.requires_grad()) {
    if (frozen_) leaf_.unsafeGetTensorImpl()->set_requires_grad(true);
  }
  ~Unfrozen() {
    if (frozen_) leaf_.unsafeGetTensorImpl()->set_requires_grad(false);
  }
  Unfrozen(const Unfrozen&) = delete;
  Unfrozen& operator=(const Unfrozen&) = delete;

 private:
  const at::Tensor& leaf_;
  const bool frozen_;
};

/// What the node does itself, with the hooks that follow the accumulation.
torch::autograd::variable_list accumulate(torch::autograd::AccumulateGrad& leaf,
                                          torch::autograd::variable_list&& gradients,
                                          AddGradient add) {
  if (!add(leaf.variable, gradients[0])) return leaf(std::move(gradients));
  if (auto& hook = leaf.tensor_post_acc_grad_hooks()) (*hook)(leaf.variable);
  return {};
}

}  // namespace

bool has_hooks(torch::autograd::Node& leaf) {
  const auto& before = leaf.pre_hooks();
  return !leaf.tensor_pre_hooks().empty() || !leaf.post_hooks().empty() ||
         leaf.tensor_post_acc_grad_hooks() != nullptr ||
         std::any_of(before.begin(), before.end(),
                     [](const auto& hook) { return typeid(*hook) != typeid(LeafGuard); });
}

void run_hooks_before(LeafSum& sum) {
  auto& leaf = static_cast<torch::autograd::AccumulateGrad&>(*sum.leaf);
  torch::autograd::variable_list gradients;
  gradients.push_back(std::move(sum.gradient));
  at::AutoGradMode mode(sum.grad_mode);
  for (auto& hook : leaf.tensor_pre_hooks()) gradients = (*hook)(gradients);
  for (auto& hook : leaf.pre_hooks()) {
    if (typeid(*hook) != typeid(LeafGuard)) gradients = (*hook)(gradients);
  }
  sum.gradient = std::move(gradients[0]);
}

void add_to_leaf(LeafSum&& sum) {
  add_to_leaf(std::move(sum), [](const at::Tensor&, const at::Tensor&) { return false; });
}

void add_to_leaf(LeafSum&& sum, AddGradient add) {
  auto& leaf = static_cast<torch::autograd::AccumulateGrad&>(*sum.leaf);
  at::AutoGradMode mode(sum.grad_mode);
  torch::autograd::variable_list gradients;
  gradients.push_back(std::move(sum.gradient));
  own_storage(leaf.variable, gradients[0]);
  const Unfrozen unfrozen(leaf.variable);
  if (leaf.post_hooks().empty()) {
    accumulate(leaf, std::move(gradients), add);
    return;
  }
  const auto inputs = gradients;
  auto outputs = accumulate(leaf, std::move(gradients), add);
  for (auto& hook : leaf.post_hooks()) outputs = (*hook)(outputs, inputs);
}

}  // namespace smp::server
