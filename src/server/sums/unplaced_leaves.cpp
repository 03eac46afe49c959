// server/sums/unplaced_leaves.cpp: terms are kept from the second on.
#include "server/sums/unplaced_leaves.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "server/values/tensor_memory.h"

namespace smp::server {

void UnplacedLeaves::begin(std::uint32_t microbatches) {
  clear();
  microbatches_ = microbatches;
}

void UnplacedLeaves::clear() noexcept {
  histories_.clear();
  microbatches_ = 0;
}

void UnplacedLeaves::forget_gone() {
  std::erase_if(histories_, [](const auto& item) { return item.second.variable.expired(); });
}

/// Returns what is known of `leaf`; a leaf at the address of one that is gone has its number.
UnplacedLeaves::History& UnplacedLeaves::history_of(ParameterNumber number,
                                                    const at::Tensor& leaf) {
  const auto found = histories_.find(number);
  if (found != histories_.end()) {
    if (found->second.variable.lock() == leaf.getIntrusivePtr()) return found->second;
    histories_.erase(found);
  }
  return histories_.emplace(number, leaf).first->second;
}

bool UnplacedLeaves::is_as_left(const History& history, const at::Tensor& leaf) {
  const auto& gradient = leaf.grad();
  return gradient.defined() && history.gradient.lock() == gradient.getIntrusivePtr() &&
         version_of(gradient) == history.version;
}

/// Hooks may suspend the fiber, so what they do comes first.
void UnplacedLeaves::update(ParameterNumber number, std::uint32_t microbatch, LeafSum&& sum) {
  run_hooks_before(sum);
  if (microbatches_ < 2 || !sum.gradient.defined()) return add_to_leaf(std::move(sum));
  const auto node = sum.leaf;
  const auto& leaf = static_cast<const Leaf&>(*node);
  auto& history = history_of(number, leaf.variable);
  const bool own_hooks =
      !node->post_hooks().empty() || leaf.tensor_post_acc_grad_hooks() != nullptr;
  if (own_hooks || sum.grad_mode) history.lost = true;
  if (history.lost) {
    history.terms.clear();
    return add_to_leaf(std::move(sum));
  }
  note(history, microbatch, sum);
  add_to_leaf(std::move(sum));
  history.gradient = Weak(leaf.variable.grad().getIntrusivePtr());
  history.version = version_of(leaf.variable.grad());
}

/// Notes that `sum` is about to be added.
void UnplacedLeaves::note(History& history, std::uint32_t microbatch, const LeafSum& sum) {
  const at::NoGradGuard no_grad;
  const auto& leaf = static_cast<const Leaf&>(*sum.leaf).variable;
  auto& terms = history.terms;
  if (terms.empty()) {
    if (leaf.grad().defined()) history.before = leaf.grad().clone();
  } else if (!is_as_left(history, leaf)) {
    history.lost = true;
    terms.clear();
    history.before.reset();
    return;
  } else if (!terms[0].gradient.defined()) {
    terms[0].gradient = leaf.grad().clone();
  }
  // Where there is no gradient yet, this one becomes it.
  if (leaf.grad().defined()) {
    terms.push_back({microbatch, is_alone(sum.gradient) ? sum.gradient : sum.gradient.clone()});
  } else {
    terms.push_back({microbatch, {}});
  }
}

void UnplacedLeaves::put_in_order() {
  for (auto& [number, history] : histories_) put_in_order(history);
  clear();
}

/// Adds the terms up again, by the additions of LibTorch, if their order was another.
void UnplacedLeaves::put_in_order(History& history) {
  const auto by_microbatch = [](const Term& a, const Term& b) {
    return a.microbatch < b.microbatch;
  };
  auto& terms = history.terms;
  if (history.lost || std::is_sorted(terms.begin(), terms.end(), by_microbatch)) return;
  const auto variable = history.variable.lock();
  if (!variable) return;
  at::Tensor leaf(variable);
  if (!is_as_left(history, leaf)) return;
  std::stable_sort(terms.begin(), terms.end(), by_microbatch);
  const at::NoGradGuard no_grad;
  auto sum = std::move(history.before);
  for (const auto& term : terms) {
    Leaf::accumulateGrad(leaf, sum, term.gradient, 1,
                         [&](at::Tensor&& updated) { sum = std::move(updated); });
  }
  auto& gradient = leaf.mutable_grad();
  if (gradient.layout() == at::kStrided && sum.layout() == at::kStrided) {
    gradient.copy_(sum);
  } else {
    gradient = sum;
  }
}

}  // namespace smp::server
