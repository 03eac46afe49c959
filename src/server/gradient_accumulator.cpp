// server/gradient_accumulator.cpp: when a sum is complete, and how it enters `.grad`.
#include "server/gradient_accumulator.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <tuple>
#include <typeinfo>

#include "base/check.h"
#include "server/gradient_sum.h"
#include "server/leaf_guards.h"

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

/// A leaf takes no gradient while it is frozen. Whether it should was asked when the gradient came;
/// now another microbatch may have frozen it for itself.
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

}  // namespace

// ---- a step ------------------------------------------------------------------------------------

void GradientAccumulator::begin(int microbatches) {
  SMP_ASSERT(count_ == 0, "the last step was neither finished nor dropped");
  numbers_.forget_unplaced();
  count_ = static_cast<std::uint32_t>(microbatches);
  if (microbatches_.size() < count_) microbatches_.resize(count_);
  marked_microbatches_.reserve(2 * std::size_t{count_});  // each is marked at most twice
  parameters_.assign(numbers_.size(), {});
  most_waiting_bytes_ = 0;
  effort_ = {};
}

void GradientAccumulator::finish() {
  for (std::uint32_t number = 0; number < count_; ++number) {
    mark_microbatch_done(static_cast<int>(number));
  }
  settle();
  for (std::uint32_t number = 0; number < count_; ++number) {
    sum_up_rest(microbatches_[number]);
    for (auto& rest : std::exchange(microbatches_[number].rest, {})) apply(std::move(rest.sum));
  }
  const auto left = partials_.size() - free_partials_.size();
  SMP_ASSERT(left == 0 && waiting_bytes_ == 0, left, " sums, ", waiting_bytes_, " bytes left");
  reset();
}

void GradientAccumulator::drop() noexcept { reset(); }

/// Lets go of all tensors and graphs, and keeps the arrays.
void GradientAccumulator::reset() noexcept {
  for (std::uint32_t number = 0; number < count_; ++number) {
    auto& microbatch = microbatches_[number];
    microbatch.forward_done = microbatch.done = microbatch.planned = false;
    for (; microbatch.opened > 0; --microbatch.opened) {
      auto& execution = microbatch.executions[microbatch.opened - 1];
      execution.roots.clear();
      execution.waiters.clear();
    }
    microbatch.cells.clear();
    microbatch.waiters.clear();
    microbatch.rest.clear();
  }
  free_partials_.clear();
  for (std::uint32_t index = 0; index < partials_.size(); ++index) {
    partials_[index].sum = {};
    partials_[index].waiting.clear();
    free_partials_.push_back(index);  // it had room for all of them
  }
  marked_executions_.clear();
  marked_microbatches_.clear();
  count_ = 0;
  opened_ = arrivals_ = waiting_bytes_ = 0;
}

// ---- executions --------------------------------------------------------------------------------

ExecutionId GradientAccumulator::open(int microbatch, OrderKey order, bool after_first_backward) {
  const auto number = static_cast<std::uint32_t>(microbatch);
  auto& own = at(number);
  if (own.opened == own.executions.size()) own.executions.emplace_back();
  auto& execution = own.executions[own.opened];
  execution.order = std::move(order);
  execution.after_first_backward = after_first_backward || own.forward_done;
  execution.closed = execution.recorded = false;
  execution.place = kNone;
  if (marked_executions_.capacity() <= opened_) marked_executions_.reserve(2 * opened_ + 16);
  ++opened_;
  return {number, own.opened++};
}

void GradientAccumulator::recorded(ExecutionId id, edge_list roots) {
  const bool planned = at(id.microbatch).planned;
  auto& execution = at(id);
  if (execution.after_first_backward || execution.closed) return;  // nothing waits for it
  SMP_ASSERT(!planned || execution.recorded, "execution ", execution.order.text(),
             " of microbatch ", id.microbatch, " is recorded after the forward");
  execution.recorded = true;
  if (!planned) execution.roots = std::move(roots);
}

void GradientAccumulator::close(ExecutionId id) {
  mark_closed(id);
  settle();
}

bool GradientAccumulator::after_first_backward(ExecutionId id) const {
  SMP_ASSERT(exists(id), "execution ", id.number, " of microbatch ", id.microbatch);
  return microbatches_[id.microbatch].executions[id.number].after_first_backward;
}

void GradientAccumulator::mark_closed(ExecutionId id) noexcept {
  if (!exists(id)) return;  // a step that failed is gone already
  auto& execution = microbatches_[id.microbatch].executions[id.number];
  if (!std::exchange(execution.closed, true)) marked_executions_.push_back(id);
}

void GradientAccumulator::mark_forward_done(int microbatch) noexcept {
  const auto number = static_cast<std::uint32_t>(microbatch);
  if (number >= count_ || std::exchange(microbatches_[number].forward_done, true)) return;
  marked_microbatches_.push_back(number);
}

void GradientAccumulator::mark_microbatch_done(int microbatch) noexcept {
  const auto number = static_cast<std::uint32_t>(microbatch);
  if (number >= count_ || std::exchange(microbatches_[number].done, true)) return;
  microbatches_[number].forward_done = true;
  marked_microbatches_.push_back(number);
}

// ---- conclusions -------------------------------------------------------------------------------

/// Each mark is taken before its conclusions are drawn: a hook may suspend this fiber meanwhile,
/// and another may settle the others.
void GradientAccumulator::settle() {
  for (;;) {
    if (!marked_microbatches_.empty()) {
      const auto number = marked_microbatches_.back();
      marked_microbatches_.pop_back();
      draw_conclusions(number);
    } else if (!marked_executions_.empty()) {
      const auto id = marked_executions_.back();
      marked_executions_.pop_back();
      wake_waiters(id);
    } else {
      return;
    }
  }
}

void GradientAccumulator::draw_conclusions(std::uint32_t number) {
  // By index, here and below: code of the user may run in between.
  for (std::size_t i = 0; i < at(number).waiters.size(); ++i) {
    const auto waiter = at(number).waiters[i];
    if (parameters_[waiter].waits_for == number) parameters_[waiter].waits_for = kNone;
    look_at(number, waiter);
  }
  at(number).waiters.clear();
  if (!at(number).done) return;
  for (ExecutionId id{number, 0}; id.number < at(number).opened; ++id.number) {
    at(id).closed = true;
  }
  for (ExecutionId id{number, 0}; id.number < at(number).opened; ++id.number) wake_waiters(id);
  sum_up_rest(at(number));
}

/// `id` has closed: nobody waits for it any more.
void GradientAccumulator::wake_waiters(ExecutionId id) {
  edge_list().swap(at(id).roots);
  for (std::size_t i = 0; i < at(id).waiters.size(); ++i) {
    const auto waiter = at(id).waiters[i];
    if (cell(at(id.microbatch), waiter).blocker == id.number) look_at(id.microbatch, waiter);
  }
  at(id).waiters.clear();
}

// ---- gradients arrive --------------------------------------------------------------------------

/// What was frozen since its forward gets nothing, as in one process.
void GradientAccumulator::Pass::put(Leaf& leaf, variable_list&& gradients) {
  if (!leaf.variable.requires_grad()) return;
  accumulator_.put(leaf, std::move(gradients), id_, after_first_backward_);
}

void GradientAccumulator::put(Leaf& leaf, variable_list&& gradients, ExecutionId id,
                              bool after_first_backward) {
  const auto number = admit(leaf.variable);
  auto& microbatch = at(id.microbatch);
  waiting_bytes_ += dense_bytes(gradients.at(0));
  const auto arrival = arrivals_++;
  if (after_first_backward || at(id).after_first_backward) {
    auto node = NodePtr::unsafe_reclaim_from_nonowning(&leaf);
    Sum sum{std::move(node), at::GradMode::is_enabled(), std::move(gradients[0])};
    if (of_no_model(number) && at(id).order == OrderKey()) {  // the body may read it next
      apply(std::move(sum));
    } else {
      microbatch.rest.push_back({number, id.number, arrival, std::move(sum)});
    }
  } else {
    add_waiting(microbatch, number, leaf, {id.number, arrival, std::move(gradients[0])});
    look_at(id.microbatch, number);
  }
  most_waiting_bytes_ = std::max(most_waiting_bytes_, waiting_bytes_);
}

ParameterNumber GradientAccumulator::admit(const at::Tensor& parameter) {
  const auto number = numbers_.of(parameter);
  if (number >= parameters_.size()) parameters_.resize(numbers_.size());
  if (!parameters_[number].admitted) guard_(parameter);
  parameters_[number].admitted = true;
  return number;
}

/// Of two contributions, the one that is added later is the lesser: heaps have the greatest in
/// front. Before the places are known all are equal, and plan() orders the heap.
class GradientAccumulator::AddedFirst {
 public:
  explicit AddedFirst(const Microbatch& microbatch) : executions_(microbatch.executions) {}
  bool operator()(const Contribution& a, const Contribution& b) const noexcept {
    return std::pair(executions_[a.execution].place, a.arrival) >
           std::pair(executions_[b.execution].place, b.arrival);
  }

 private:
  const std::vector<Execution>& executions_;
};

void GradientAccumulator::add_waiting(Microbatch& microbatch, ParameterNumber number, Leaf& leaf,
                                      Contribution&& contribution) {
  auto& index = cell(microbatch, number).partial;
  if (index == kNone) {
    index = take_partial();
    ++parameters_[number].partials;
    partials_[index].sum.leaf = NodePtr::unsafe_reclaim_from_nonowning(&leaf);
  }
  auto& partial = partials_[index];
  partial.sum.grad_mode = at::GradMode::is_enabled();
  partial.waiting.push_back(std::move(contribution));
  std::push_heap(partial.waiting.begin(), partial.waiting.end(), AddedFirst{microbatch});
}

std::uint32_t GradientAccumulator::take_partial() {
  if (free_partials_.empty()) {
    free_partials_.push_back(static_cast<std::uint32_t>(partials_.size()));
    partials_.emplace_back();
    free_partials_.reserve(partials_.capacity());  // reset() frees all of them, and must not throw
  }
  const auto index = free_partials_.back();
  free_partials_.pop_back();
  return index;
}

// ---- what is certain ---------------------------------------------------------------------------

/// Draws the conclusions about one cell, and with it about the parameter's turn.
void GradientAccumulator::look_at(std::uint32_t number, ParameterNumber parameter) {
  auto& microbatch = at(number);
  if (!microbatch.forward_done) {
    microbatch.waiters.push_back(parameter);
    return;
  }
  plan(microbatch);
  const auto turn = parameters_[parameter].turn;
  const bool complete = number != turn && advance(microbatch, parameter);
  if (number >= turn) return take_turns(parameter);
  // Nobody could know of a contribution to a microbatch that had its turn: a backward inside a
  // backward, as in checkpointing; or nobody waited for it.
  if (complete) apply_cell(microbatch, parameter);
}

/// Applies what one microbatch after the other gave, as far as that is complete.
void GradientAccumulator::take_turns(ParameterNumber number) {
  if (parameters_[number].applying) return;  // whoever applies goes on
  while (parameters_[number].partials > 0 && parameters_[number].turn < count_ &&
         turn_is_over(number)) {
    apply_cell(at(parameters_[number].turn++), number);
  }
}

/// Whether the microbatch whose turn it is has given all; if not, somebody will look again.
bool GradientAccumulator::turn_is_over(ParameterNumber number) {
  auto& parameter = parameters_[number];
  auto& microbatch = at(parameter.turn);
  if (microbatch.forward_done) {
    plan(microbatch);
    return advance(microbatch, number);
  }
  if (of_no_model(number)) return true;  // it is probably of the microbatch that uses it
  if (std::exchange(parameter.waits_for, parameter.turn) != parameter.turn) {
    microbatch.waiters.push_back(number);
  }
  return false;
}

/// Passes executions that have delivered or closed, and sums what they gave; true if all have.
bool GradientAccumulator::advance(Microbatch& microbatch, ParameterNumber number) {
  auto& own = cell(microbatch, number);
  for (; own.next < own.end; ++own.next) {
    const auto index = microbatch.reaching[own.next];
    auto& execution = microbatch.executions[index];
    ++effort_.pairs;
    if (absorb_through(microbatch, own, execution.place) || execution.closed) continue;
    if (std::exchange(own.blocker, index) != index) execution.waiters.push_back(number);
    return false;
  }
  absorb_through(microbatch, own, kNone);
  own.blocker = kNone;
  return true;
}

/// Adds what came from the executions up to `place`; true if that of `place` gave something.
bool GradientAccumulator::absorb_through(const Microbatch& microbatch, const Cell& cell,
                                         std::uint32_t place) {
  if (cell.partial == kNone) return false;
  auto& [sum, waiting] = partials_[cell.partial];
  const auto place_of_first = [&] {
    return waiting.empty() ? kNone : microbatch.executions[waiting.front().execution].place;
  };
  bool delivered = false;
  while (!waiting.empty() && place_of_first() <= place) {
    delivered |= place_of_first() == place;
    std::pop_heap(waiting.begin(), waiting.end(), AddedFirst{microbatch});
    auto gradient = std::move(waiting.back().gradient);
    waiting.pop_back();
    add(sum, std::move(gradient));
  }
  return delivered;
}

// ---- which execution reaches what --------------------------------------------------------------

/// Once a microbatch, when its forward is done and somebody must know.
void GradientAccumulator::plan(Microbatch& microbatch) {
  if (std::exchange(microbatch.planned, true)) return;
  find_places(microbatch);
  reached_.clear();
  seen_.clear();
  for (const auto execution : microbatch.places) walk(microbatch, execution);
  list_reaching(microbatch);
  for (const auto number : microbatch.waiters) {  // contributions came before the places
    const auto partial = cell(microbatch, number).partial;
    if (partial == kNone) continue;
    auto& waiting = partials_[partial].waiting;
    std::make_heap(waiting.begin(), waiting.end(), AddedFirst{microbatch});
  }
}

/// Sorts the executions: the last in one process is the first in backward.
void GradientAccumulator::find_places(Microbatch& microbatch) {
  auto& places = microbatch.places;
  auto& executions = microbatch.executions;
  places.clear();
  for (std::uint32_t number = 0; number < microbatch.opened; ++number) {
    if (!executions[number].after_first_backward) places.push_back(number);
  }
  std::sort(places.begin(), places.end(), [&](std::uint32_t a, std::uint32_t b) {
    return executions[a].order > executions[b].order;
  });
  for (std::uint32_t place = 0; place < places.size(); ++place) {
    const auto& order = executions[places[place]].order;
    SMP_ASSERT(place == 0 || order != executions[places[place - 1]].order, "two executions are ",
               order.text());
    executions[places[place]].place = place;
  }
}

/// Notes every parameter that backward of the execution would reach.
void GradientAccumulator::walk(Microbatch& microbatch, std::uint32_t number) {
  const auto& execution = microbatch.executions[number];
  if (execution.closed || execution.roots.empty()) return;
  const auto serial = ++effort_.walks;
  const auto visit = [&](const torch::autograd::Edge& edge) {
    if (!edge.is_valid() || std::exchange(seen_[edge.function.get()], serial) == serial) return;
    pending_nodes_.push_back(edge.function.get());
  };
  for (const auto& root : execution.roots) visit(root);
  while (!pending_nodes_.empty()) {
    auto& node = *pending_nodes_.back();
    pending_nodes_.pop_back();
    if (auto* leaf = as_leaf(node)) reached_.emplace_back(numbers_.of(leaf->variable), number);
    for (const auto& edge : node.next_edges()) visit(edge);
  }
}

/// Turns what reached_ says by execution into a list by parameter, which keeps the order.
void GradientAccumulator::list_reaching(Microbatch& microbatch) {
  auto& cells = microbatch.cells;
  if (cells.size() < numbers_.size()) cells.resize(numbers_.size());
  for (const auto& [parameter, execution] : reached_) ++cells[parameter].end;
  std::uint32_t first = 0;
  for (auto& own : cells) {
    own.next = first;
    first += std::exchange(own.end, first);
  }
  microbatch.reaching.resize(first);
  for (const auto& [parameter, execution] : reached_) {
    microbatch.reaching[cells[parameter].end++] = execution;
  }
}

// ---- sums --------------------------------------------------------------------------------------

void GradientAccumulator::add(Sum& sum, at::Tensor&& gradient) {
  waiting_bytes_ -= dense_bytes(sum.gradient) + dense_bytes(gradient);
  at::AutoGradMode mode(sum.grad_mode);
  add_gradient(sum.gradient, std::move(gradient));
  waiting_bytes_ += dense_bytes(sum.gradient);
}

/// Leaves one sum a parameter of what followed the first backward.
void GradientAccumulator::sum_up_rest(Microbatch& microbatch) {
  auto& rest = microbatch.rest;
  const auto& executions = microbatch.executions;
  const auto position = [&](const AfterFirstBackward& one) -> const OrderKey& {
    return executions[one.execution].order;
  };
  std::sort(rest.begin(), rest.end(), [&](const auto& a, const auto& b) {
    return std::tie(a.parameter, position(b), a.arrival) <
           std::tie(b.parameter, position(a), b.arrival);
  });
  std::size_t sums = 0;
  for (auto& one : rest) {
    if (sums > 0 && rest[sums - 1].parameter == one.parameter) {
      rest[sums - 1].sum.grad_mode = one.sum.grad_mode;
      add(rest[sums - 1].sum, std::move(one.sum.gradient));
    } else if (&rest[sums++] != &one) {
      rest[sums - 1] = std::move(one);
    }
  }
  rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(sums), rest.end());
}

/// Whatever can be noted is, before hooks run: they may throw or suspend.
void GradientAccumulator::apply_cell(Microbatch& microbatch, ParameterNumber number) {
  const auto index = std::exchange(cell(microbatch, number).partial, kNone);
  if (index == kNone) return;  // it gave nothing
  auto complete = std::exchange(partials_[index].sum, {});
  free_partials_.push_back(index);
  --parameters_[number].partials;
  const bool applying = std::exchange(parameters_[number].applying, true);
  apply(std::move(complete));
  parameters_[number].applying = applying;
}

/// What LibTorch's engine does at a leaf: hooks, then AccumulateGrad.
void GradientAccumulator::apply(Sum&& sum) {
  auto& leaf = static_cast<Leaf&>(*sum.leaf);
  waiting_bytes_ -= dense_bytes(sum.gradient);
  variable_list gradients;
  gradients.push_back(std::move(sum.gradient));
  at::AutoGradMode mode(sum.grad_mode);
  for (auto& hook : leaf.tensor_pre_hooks()) gradients = (*hook)(gradients);
  for (auto& hook : leaf.pre_hooks()) {
    if (typeid(*hook) != typeid(LeafGuard)) gradients = (*hook)(gradients);
  }
  own_storage(leaf.variable, gradients[0]);
  const Unfrozen unfrozen(leaf.variable);
  if (leaf.post_hooks().empty()) {
    leaf(std::move(gradients));
    return;
  }
  const auto inputs = gradients;
  auto outputs = leaf(std::move(gradients));
  for (auto& hook : leaf.post_hooks()) outputs = (*hook)(outputs, inputs);
}

// ---- arrays ------------------------------------------------------------------------------------

bool GradientAccumulator::exists(ExecutionId id) const noexcept {
  return id.microbatch < count_ && id.number < microbatches_[id.microbatch].opened;
}

GradientAccumulator::Microbatch& GradientAccumulator::at(std::uint32_t microbatch) {
  SMP_ASSERT(microbatch < count_, "microbatch ", microbatch, " of ", count_);
  return microbatches_[microbatch];
}

GradientAccumulator::Execution& GradientAccumulator::at(ExecutionId id) {
  SMP_ASSERT(exists(id), "execution ", id.number, " of microbatch ", id.microbatch);
  return microbatches_[id.microbatch].executions[id.number];
}

GradientAccumulator::Cell& GradientAccumulator::cell(Microbatch& microbatch,
                                                     ParameterNumber number) {
  if (number >= microbatch.cells.size()) microbatch.cells.resize(numbers_.size());
  return microbatch.cells[number];
}

}  // namespace smp::server
