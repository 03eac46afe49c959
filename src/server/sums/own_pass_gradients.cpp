// server/sums/own_pass_gradients.cpp: kept aside, shown, added up.
#include "server/sums/own_pass_gradients.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "server/graph/gradient_sum.h"
#include "server/running/execution_scope.h"
#include "server/running/inside_node.h"
#include "server/running/leaf_hooks.h"
#include "server/sums/leaf_update.h"
#include "server/values/tensor_memory.h"

namespace smp::server {

bool OwnPassGradients::comes_first(const Gradient& a, const Gradient& b) noexcept {
  return std::tie(a.place.in_hook, a.place.microbatch, a.place.order, a.place.hooked, a.arrival) <
         std::tie(b.place.in_hook, b.place.microbatch, b.place.order, b.place.hooked, b.arrival);
}

OwnPassGradients::Place OwnPassGradients::place_of_pass() const {
  if (const auto* hooks = LeafHooks::current()) {
    return {hooks->microbatch(), true, hooks->leaf(), {}};
  }
  const auto& identity = ExecutionScope::current()->identity();
  const auto microbatch = static_cast<std::uint32_t>(identity.microbatch);
  if (identity.execution == ExecutionId()) return {microbatch, false, 0, {}};
  return {microbatch, false, 0, step_.at(identity.execution).order};
}

bool OwnPassGradients::take(Leaf& leaf, const at::Tensor& gradient) {
  const auto number = numbers_.of(leaf.variable);
  const bool in_order = step_.size() < 2;
  const bool later_hooks =
      leaf.tensor_post_acc_grad_hooks() != nullptr || !leaf.post_hooks().empty();
  if (in_order || later_hooks || at::GradMode::is_enabled() || !gradient.defined() ||
      !leaf.variable.requires_grad()) {  // frozen since: LibTorch does nothing
    withdraw(number);
    return false;
  }
  auto& parameter = parameters_[number];
  parameter.leaf = owner_of<torch::autograd::Node>(&leaf);
  const auto place = place_of_pass();
  // Code that a node of ours runs, such as a forward that is done again, has its caller to read it.
  const bool read_here = !inside_own_node();
  if (!read_here || !is_shown(parameter, place)) withdraw(parameter);
  const at::NoGradGuard no_grad;
  parameter.waiting.push_back(
      {place, arrivals_++, is_alone(gradient) ? gradient : gradient.clone()});
  if (read_here) show(parameter, parameter.waiting.back());
  return true;
}

// ---- what code may read ------------------------------------------------------------------------

/// True if `.grad` is what it was made for the code at `place`.
bool OwnPassGradients::is_shown(const Parameter& parameter, const Place& place) {
  return parameter.shown && parameter.shown->place == place && is_untouched(parameter);
}

bool OwnPassGradients::is_untouched(const Parameter& parameter) {
  const auto& gradient = static_cast<const Leaf&>(*parameter.leaf).variable.grad();
  return gradient.is_same(parameter.shown->now) && version_of(gradient) == parameter.shown->version;
}

/// Puts a copy into `.grad` that has `gradient` in it, or adds it to the copy that is there.
void OwnPassGradients::show(Parameter& parameter, const Gradient& gradient) {
  auto& leaf = static_cast<Leaf&>(*parameter.leaf);
  auto& shown = parameter.shown;
  if (!shown) {
    const auto before = leaf.variable.grad();
    if (before.defined()) leaf.variable.mutable_grad() = before.clone();
    shown = Shown{gradient.place, before, {}, 0, gradient.arrival};
  }
  add_to_leaf({parameter.leaf, false, gradient.tensor});
  shown->now = leaf.variable.grad();
  shown->version = version_of(shown->now);
}

void OwnPassGradients::withdraw(ParameterNumber number) {
  const auto found = parameters_.find(number);
  if (found != parameters_.end()) withdraw(found->second);
}

void OwnPassGradients::withdraw(Parameter& parameter) {
  if (!parameter.shown) return;
  const bool untouched = is_untouched(parameter);
  const auto shown = *std::exchange(parameter.shown, std::nullopt);
  if (untouched) {
    static_cast<Leaf&>(*parameter.leaf).variable.mutable_grad() = shown.before;
    return;
  }
  // The code that has begun the pass has made something else of it.
  std::erase_if(parameter.waiting, [&](const Gradient& gradient) {
    return gradient.place == shown.place && gradient.arrival >= shown.first;
  });
}

// ---- sums --------------------------------------------------------------------------------------

void OwnPassGradients::close(std::uint32_t microbatch) {
  closed_.resize(step_.size());
  closed_[microbatch] = true;
  const auto before = added_up_;
  while (added_up_ < closed_.size() && closed_[added_up_]) ++added_up_;
  if (added_up_ == before) return;
  for (auto& [number, parameter] : parameters_) add_up(parameter, added_up_);
}

/// Adds up what the lower ones of `microbatches` have given, hooks of leaves apart.
void OwnPassGradients::add_up(Parameter& parameter, std::uint32_t microbatches) {
  if (parameter.waiting.empty()) return;
  withdraw(parameter);
  auto& waiting = parameter.waiting;
  std::sort(waiting.begin(), waiting.end(), comes_first);
  const at::NoGradGuard no_grad;
  auto next = waiting.begin();
  for (; next != waiting.end() && !next->place.in_hook && next->place.microbatch < microbatches;
       ++next) {
    add_gradient(parameter.sum, std::move(next->tensor));
  }
  waiting.erase(waiting.begin(), next);
}

void OwnPassGradients::finish() {
  const at::NoGradGuard no_grad;
  for (auto& [number, parameter] : parameters_) {
    add_up(parameter, step_.size());
    withdraw(parameter);
    for (auto& gradient : parameter.waiting) {
      add_gradient(parameter.sum, std::move(gradient.tensor));
    }
    if (!parameter.sum.defined()) continue;
    add_to_leaf({parameter.leaf, false, std::move(parameter.sum)});
  }
  clear();
}

void OwnPassGradients::clear() noexcept {
  parameters_.clear();
  closed_.clear();
  added_up_ = 0;
  arrivals_ = 0;
}

}  // namespace smp::server
