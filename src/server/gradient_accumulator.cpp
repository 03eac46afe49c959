// server/gradient_accumulator.cpp: when a sum is complete, and how it enters `.grad`.
#include "server/gradient_accumulator.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>

#include "base/check.h"
#include "server/gradient_sum.h"

namespace smp::server {
namespace {

std::size_t dense_bytes(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided ? tensor.nbytes() : 0;
}

/// Whether nobody else can see the bytes of `tensor`. A view keeps its base alive inside its own
/// metadata even under no_grad (Linear's weight gradient is a transposed product).
bool alone(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return true;
  if (tensor.use_count() > 1) return false;
  const auto users = tensor.storage().use_count();
  return users == 1 || (users == 2 && tensor.is_view() && tensor._base().use_count() == 1);
}

/// `.grad` never shares storage: otherwise the next `+=` would change bytes that are in flight.
void own_storage(const at::Tensor& parameter, at::Tensor& gradient) {
  const bool steals = !parameter.grad().defined() && !at::GradMode::is_enabled();
  if (steals && gradient.defined() && gradient.layout() == at::kStrided && !alone(gradient)) {
    gradient = gradient.clone();
  }
}

}  // namespace

void GradientAccumulator::begin(int microbatches) {
  SMP_ASSERT(parameters_.empty());
  microbatches_.assign(static_cast<std::size_t>(microbatches), {});
  finishing_ = false;
  most_waiting_bytes_ = waiting_bytes_ = 0;
}

void GradientAccumulator::finish() {
  finishing_ = true;
  settle();
  SMP_ASSERT(parameters_.empty() && waiting_bytes_ == 0, parameters_.size(), " parameters, ",
             waiting_bytes_, " bytes left");
  microbatches_.clear();
}

void GradientAccumulator::drop() noexcept {
  finishing_ = true;
  parameters_.clear();
  microbatches_.clear();
  waiting_bytes_ = 0;
}

int GradientAccumulator::open(int microbatch, bool late) {
  auto& runs = microbatches_.at(static_cast<std::size_t>(microbatch)).runs;
  runs.emplace_back();
  runs.back().late = late;
  return static_cast<int>(runs.size()) - 1;
}

void GradientAccumulator::recorded(int microbatch, int index, edge_list roots) {
  auto& run = microbatches_.at(static_cast<std::size_t>(microbatch))
                  .runs.at(static_cast<std::size_t>(index));
  run.roots = std::move(roots);
  run.walked = false;
}

void GradientAccumulator::close(int microbatch, int index) {
  mark_closed(microbatch, index);
  settle();
}

void GradientAccumulator::mark_closed(int microbatch, int index) noexcept {
  const auto number = static_cast<std::size_t>(microbatch);
  if (number >= microbatches_.size()) return;  // a step that failed is gone already
  auto& run = microbatches_[number].runs[static_cast<std::size_t>(index)];
  run.live = false;
  run.roots.clear();
  run.reached.clear();
}

bool GradientAccumulator::is_late(int microbatch, int index) const {
  return microbatches_.at(static_cast<std::size_t>(microbatch))
      .runs.at(static_cast<std::size_t>(index))
      .late;
}

void GradientAccumulator::mark_forward_done(int microbatch) noexcept {
  const auto number = static_cast<std::size_t>(microbatch);
  if (number < microbatches_.size()) microbatches_[number].forward_done = true;
}

void GradientAccumulator::mark_microbatch_done(int microbatch) noexcept {
  const auto number = static_cast<std::size_t>(microbatch);
  if (number >= microbatches_.size()) return;
  microbatches_[number].forward_done = microbatches_[number].done = true;
}

void GradientAccumulator::settle() {
  std::vector<ParameterId> waiting;
  waiting.reserve(parameters_.size());
  for (const auto& [parameter, partials] : parameters_) waiting.push_back(parameter);
  for (const auto* parameter : waiting) settle(parameter);
}

void GradientAccumulator::Pass::put(Leaf& leaf, variable_list&& gradients) {
  accumulator_.put(leaf, std::move(gradients), microbatch_, index_, late_);
}

void GradientAccumulator::put(Leaf& leaf, variable_list&& gradients, int microbatch, int index,
                              bool late) {
  guard_(leaf.variable);
  const ParameterId parameter = leaf.variable.unsafeGetTensorImpl();
  auto& partial = parameters_[parameter][{late, microbatch}];
  if (!partial.leaf) partial.leaf = NodePtr::unsafe_reclaim_from_nonowning(&leaf);
  partial.grad_mode = at::GradMode::is_enabled();
  waiting_bytes_ += dense_bytes(gradients.at(0));
  const auto later = std::find_if(partial.waiting.begin(), partial.waiting.end(),
                                  [&](const Contribution& c) { return c.index < index; });
  partial.waiting.insert(later, {index, std::move(gradients[0])});
  microbatches_.at(static_cast<std::size_t>(microbatch))
      .runs.at(static_cast<std::size_t>(index))
      .delivered.insert(parameter);
  settle(parameter);
  most_waiting_bytes_ = std::max(most_waiting_bytes_, waiting_bytes_);
}

void GradientAccumulator::settle(ParameterId parameter) {
  const auto found = parameters_.find(parameter);
  if (found == parameters_.end()) return;
  auto& partials = found->second;
  for (auto next = partials.begin(); next != partials.end();) {
    if (!settle(parameter, partials, next->first, next->second)) {
      ++next;
      continue;
    }
    // Out of the map before its hooks run: they may suspend nothing, but they may throw.
    Partial complete = std::move(next->second);
    next = partials.erase(next);
    apply(complete);
  }
  if (partials.empty()) parameters_.erase(parameter);
}

/// Sums what is certain; true if the partial sum is complete and it is its turn.
bool GradientAccumulator::settle(ParameterId parameter, const Partials& all, const Key& key,
                                 Partial& partial) {
  absorb_waiting(parameter, key, partial);
  if (finishing_) return true;
  const auto [late, microbatch] = key;
  auto& own = microbatches_[static_cast<std::size_t>(microbatch)];
  if (late || !own.forward_done || !partial.waiting.empty()) return false;
  if (!own.done && may_still_come(own, parameter, 0, false)) return false;
  return lower_microbatches_closed(parameter, all, microbatch);
}

void GradientAccumulator::absorb_waiting(ParameterId parameter, const Key& key, Partial& partial) {
  auto& own = microbatches_[static_cast<std::size_t>(key.second)];
  if (!finishing_ && !own.forward_done) return;
  auto next = partial.waiting.begin();
  for (; next != partial.waiting.end(); ++next) {
    const bool closed = finishing_ || own.done;
    if (!closed && may_still_come(own, parameter, next->index + 1, key.first)) break;
    if (partial.sum.defined()) waiting_bytes_ -= dense_bytes(next->gradient);
    add(partial, std::move(next->gradient));
  }
  partial.waiting.erase(partial.waiting.begin(), next);
}

bool GradientAccumulator::lower_microbatches_closed(ParameterId parameter, const Partials& all,
                                                    int microbatch) {
  for (int lower = 0; lower < microbatch; ++lower) {
    auto& other = microbatches_[static_cast<std::size_t>(lower)];
    if (all.count({false, lower}) != 0) return false;
    if (other.done) continue;
    if (!other.forward_done || may_still_come(other, parameter, 0, false)) return false;
  }
  return true;
}

/// Whether an execution with an index >= `above` may still give `parameter` a gradient.
bool GradientAccumulator::may_still_come(Microbatch& microbatch, ParameterId parameter, int above,
                                         bool late) {
  const auto first = microbatch.runs.begin() + above;
  return std::any_of(first, microbatch.runs.end(), [&](Run& run) {
    return run.live && run.late == late && run.delivered.count(parameter) == 0 &&
           reaches(run, parameter);
  });
}

/// Walked only when somebody waits, and once.
bool GradientAccumulator::reaches(Run& run, ParameterId parameter) {
  if (!run.walked) {
    run.walked = true;
    std::vector<Node*> pending;
    std::unordered_set<Node*> seen;
    const auto visit = [&](const torch::autograd::Edge& edge) {
      if (edge.is_valid() && seen.insert(edge.function.get()).second) {
        pending.push_back(edge.function.get());
      }
    };
    for (const auto& root : run.roots) visit(root);
    while (!pending.empty()) {
      auto* node = pending.back();
      pending.pop_back();
      if (auto* leaf = dynamic_cast<Leaf*>(node)) {
        run.reached.insert(leaf->variable.unsafeGetTensorImpl());
      }
      for (const auto& edge : node->next_edges()) visit(edge);
    }
  }
  return run.reached.count(parameter) != 0;
}

void GradientAccumulator::add(Partial& partial, at::Tensor&& gradient) {
  at::AutoGradMode mode(partial.grad_mode);
  add_gradient(partial.sum, std::move(gradient));
}

/// What LibTorch's engine does at a leaf: hooks, then AccumulateGrad.
void GradientAccumulator::apply(Partial& partial) {
  auto& leaf = static_cast<Leaf&>(*partial.leaf);
  waiting_bytes_ -= dense_bytes(partial.sum);
  variable_list gradients;
  gradients.push_back(std::move(partial.sum));
  at::AutoGradMode mode(partial.grad_mode);
  for (auto& hook : leaf.tensor_pre_hooks()) gradients = (*hook)(gradients);
  for (auto& hook : leaf.pre_hooks()) gradients = (*hook)(gradients);
  own_storage(leaf.variable, gradients[0]);
  if (leaf.post_hooks().empty()) {
    leaf(std::move(gradients));
    return;
  }
  const auto inputs = gradients;
  auto outputs = leaf(std::move(gradients));
  for (auto& hook : leaf.post_hooks()) outputs = (*hook)(outputs, inputs);
}

}  // namespace smp::server
