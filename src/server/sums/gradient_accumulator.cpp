// server/sums/gradient_accumulator.cpp: when a sum is complete, and whose turn it is to enter
// `.grad`.
#include "server/sums/gradient_accumulator.h"

#include <ATen/core/grad_mode.h>

#include <optional>

#include "base/check.h"
#include "base/random.h"
#include "module/node_pointer.h"
#include "server/running/execution_scope.h"
#include "server/sums/leaf_update.h"

namespace smp::server {

// ---- a step ------------------------------------------------------------------------------------

void GradientAccumulator::begin(int microbatches, GradientListener* listener) {
  SMP_ASSERT(count_ == 0, "the last step was neither finished nor dropped");
  listener_ = listener;
  numbers_.forget_unplaced();
  count_ = static_cast<std::uint32_t>(microbatches);
  if (microbatches_.size() < count_) microbatches_.resize(count_);
  marked_microbatches_.reserve(2 * std::size_t{count_});  // each is marked at most twice
  parameters_.assign(numbers_.size(), {});
  waiting_.begin();
  effort_ = {};
}

void GradientAccumulator::finish() {
  for (std::uint32_t number = 0; number < count_; ++number) {
    mark_microbatch_done(static_cast<int>(number));
  }
  settle();
  for (std::uint32_t number = 0; number < count_; ++number) {
    waiting_.sum_up_rest(microbatches_[number]);
    for (auto& rest : std::exchange(microbatches_[number].rest, {})) {
      apply(std::move(rest.sum), number, true);
    }
  }
  SMP_ASSERT(waiting_.num_open() == 0 && waiting_.bytes() == 0, waiting_.num_open(), " sums, ",
             waiting_.bytes(), " bytes left");
  reset();
}

void GradientAccumulator::drop() noexcept { reset(); }

/// Releases all tensors and graphs, and keeps the arrays.
void GradientAccumulator::reset() noexcept {
  for (std::uint32_t number = 0; number < count_; ++number) microbatches_[number].clear();
  waiting_.clear();
  marked_executions_.clear();
  marked_microbatches_.clear();
  count_ = 0;
  opened_ = arrivals_ = 0;
  listener_ = nullptr;
}

// ---- executions --------------------------------------------------------------------------------

ExecutionId GradientAccumulator::open(int microbatch, OrderKey order, bool after_first_backward) {
  const auto number = static_cast<std::uint32_t>(microbatch);
  auto& own = at(number);
  if (marked_executions_.capacity() <= opened_) marked_executions_.reserve(2 * opened_ + 16);
  ++opened_;
  return {number, own.open(std::move(order), after_first_backward)};
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

/// Takes each mark off the list before its conclusions are drawn: a hook may suspend this fiber
/// meanwhile, and another may settle the others.
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
  waiting_.sum_up_rest(at(number));
}

/// Looks again at the parameters that waited for execution `id`, which has closed, and frees its
/// graph.
void GradientAccumulator::wake_waiters(ExecutionId id) {
  edge_list().swap(at(id).roots);
  for (std::size_t i = 0; i < at(id).waiters.size(); ++i) {
    const auto waiter = at(id).waiters[i];
    if (cell(at(id.microbatch), waiter).blocker == id.number) look_at(id.microbatch, waiter);
  }
  at(id).waiters.clear();
}

// ---- gradients arrive --------------------------------------------------------------------------

/// Takes a gradient for `leaf`. A leaf that was frozen since its forward gets none, as in one
/// process.
void GradientAccumulator::Pass::put(Leaf& leaf, variable_list&& gradients) {
  if (!leaf.variable.requires_grad()) return;
  accumulator_.put(leaf, std::move(gradients), id_, after_first_backward_);
}

void GradientAccumulator::put(Leaf& leaf, variable_list&& gradients, ExecutionId id,
                              bool after_first_backward) {
  const auto number = admit(leaf.variable);
  auto& microbatch = at(id.microbatch);
  waiting_.arrive(gradients.at(0));
  const auto arrival = arrivals_++;
  if (after_first_backward || at(id).after_first_backward) {
    auto node = owner_of<Node>(&leaf);
    LeafSum sum{std::move(node), at::GradMode::is_enabled(), std::move(gradients[0])};
    if (of_no_model(number) && at(id).order == OrderKey()) {  // the body may read it next
      waiting_.leave(sum);
      update_leaf(std::move(sum));
    } else {
      microbatch.rest.push_back({number, id.number, arrival, std::move(sum)});
    }
  } else {
    add_waiting(microbatch, number, leaf, {id.number, arrival, std::move(gradients[0])});
    look_at(id.microbatch, number);
  }
  waiting_.note_most();
}

ParameterNumber GradientAccumulator::admit(const at::Tensor& parameter) {
  const auto number = numbers_.of(parameter);
  if (number >= parameters_.size()) parameters_.resize(numbers_.size());
  if (!parameters_[number].admitted) guard_(parameter);
  parameters_[number].admitted = true;
  return number;
}

void GradientAccumulator::add_waiting(Microbatch& microbatch, ParameterNumber number, Leaf& leaf,
                                      Contribution&& contribution) {
  auto& sum = cell(microbatch, number).sum;
  if (sum == kNone) {
    sum = waiting_.open(leaf);
    ++parameters_[number].sums;
  }
  waiting_.put(sum, microbatch, std::move(contribution));
}

// ---- what is certain ---------------------------------------------------------------------------

/// Finds out whether the sum of one cell is complete, and whether the parameter's turn moves on.
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

/// Adds the sums of one microbatch after the other to `.grad`, as far as they are complete.
void GradientAccumulator::take_turns(ParameterNumber number) {
  if (parameters_[number].applying) return;  // whoever applies goes on
  while (parameters_[number].sums > 0 && parameters_[number].turn < count_ &&
         turn_is_over(number)) {
    apply_cell(at(parameters_[number].turn++), number);
  }
}

/// True if the microbatch whose turn it is has given everything. If not, the parameter is
/// registered with what it waits for, and looked at again then.
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

/// Passes executions that have delivered or closed, and sums their gradients; returns true if it
/// has passed all, else registers the cell with the first that it cannot pass.
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

/// Calls WaitingGradients::absorb_through(); a cell to which nothing was given has no sum.
bool GradientAccumulator::absorb_through(const Microbatch& microbatch, const Cell& cell,
                                         std::uint32_t place) {
  return cell.sum != kNone && waiting_.absorb_through(cell.sum, microbatch, place);
}

/// Finds out which executions reach which parameters: once per microbatch, when its forward is done
/// and this must be known.
void GradientAccumulator::plan(Microbatch& microbatch) {
  if (microbatch.planned) return;
  microbatch.plan(reached_);
  effort_.walks += reached_.walks();
  for (const auto number : microbatch.waiters) {  // contributions came before the places
    const auto sum = cell(microbatch, number).sum;
    if (sum != kNone) waiting_.sort(sum, microbatch);
  }
}

// ---- into .grad --------------------------------------------------------------------------------

/// Adds the complete sum of one cell to `.grad`. All bookkeeping comes before hooks run, because
/// these may throw or suspend.
void GradientAccumulator::apply_cell(Microbatch& microbatch, ParameterNumber number) {
  const auto sum = std::exchange(cell(microbatch, number).sum, kNone);
  if (sum == kNone) return;  // it gave nothing
  auto complete = waiting_.take(sum);
  --parameters_[number].sums;
  const auto leaf = complete.leaf;
  const bool applying = std::exchange(parameters_[number].applying, true);
  apply(std::move(complete), static_cast<std::uint32_t>(&microbatch - microbatches_.data()), false);
  parameters_[number].applying = applying;
  tell_if_final(static_cast<const Leaf&>(*leaf), number);
}

void GradientAccumulator::tell_if_final(const Leaf& leaf, ParameterNumber number) {
  if (listener_ == nullptr || parameters_[number].turn < count_) return;
  listener_->on_final(leaf.variable);
}

/// Runs the leaf's hooks, with a random stream of their own, and adds `sum` to `.grad`. Timing
/// decides which backward, and which fiber, completes a sum, so the stream must not depend on that.
void GradientAccumulator::apply(LeafSum&& sum, std::uint32_t microbatch,
                                bool after_first_backward) {
  waiting_.leave(sum);
  std::optional<base::RandomScope> random;
  const bool hooked = has_hooks(*sum.leaf);
  if (auto* const scope = hooked ? ExecutionScope::current() : nullptr) {
    scope->settings().note_user_code();
  }
  if (random_key_ && hooked) {
    const auto& leaf = static_cast<const Leaf&>(*sum.leaf).variable;
    random.emplace(base::mix_key(random_key_(static_cast<int>(microbatch), leaf),
                                 after_first_backward ? "later hooks" : "hooks"));
  }
  update_leaf(std::move(sum));
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
