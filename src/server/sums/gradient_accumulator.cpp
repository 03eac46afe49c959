// server/sums/gradient_accumulator.cpp: when a sum is complete, and whose turn it is to enter
// `.grad`.
#include "server/sums/gradient_accumulator.h"

#include <ATen/core/grad_mode.h>

#include <optional>

#include "base/check.h"
#include "base/random.h"
#include "module/node_pointer.h"
#include "server/running/execution_scope.h"
#include "server/running/leaf_hooks.h"
#include "server/sums/leaf_update.h"

namespace smp::server {

// ---- a step ------------------------------------------------------------------------------------

void GradientAccumulator::begin(int microbatches, GradientListener* listener) {
  step_.begin(microbatches);
  listener_ = listener;
  numbers_.forget_unplaced();
  unplaced_.begin(step_.size());
  parameters_.assign(numbers_.size(), {});
  sums_.begin();
  wide_.begin(microbatches);
}

void GradientAccumulator::finish() {
  for (std::uint32_t number = 0; number < step_.size(); ++number) {
    mark_microbatch_done(static_cast<int>(number));
  }
  settle();
  unplaced_.put_in_order();
  auto& waiting = sums_.waiting();
  for (std::uint32_t number = 0; number < step_.size(); ++number) {
    waiting.sum_up_rest(step_.at(number));
    for (auto& rest : std::exchange(step_.at(number).rest, {})) {
      apply(std::move(rest.sum), rest.parameter, number, true);
    }
  }
  own_.finish();
  SMP_ASSERT(waiting.num_open() == 0 && waiting.bytes() == 0, waiting.num_open(), " sums, ",
             waiting.bytes(), " bytes left");
  drop();
}

/// Releases all tensors and graphs, and keeps the arrays.
void GradientAccumulator::drop() noexcept {
  step_.clear();
  sums_.waiting().clear();
  unplaced_.clear();
  own_.clear();
  wide_.clear();
  arrivals_ = 0;
  listener_ = nullptr;
}

// ---- executions --------------------------------------------------------------------------------

ExecutionId GradientAccumulator::open(int microbatch, OrderKey order, bool after_first_backward) {
  return step_.open(microbatch, std::move(order), after_first_backward);
}

void GradientAccumulator::recorded(ExecutionId id, edge_list roots) {
  const bool planned = step_.at(id.microbatch).planned;
  auto& execution = step_.at(id);
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

// ---- conclusions -------------------------------------------------------------------------------

/// Takes each mark off the list before its conclusions are drawn: a hook may suspend this fiber
/// meanwhile, and another may settle the others.
void GradientAccumulator::settle() {
  for (;;) {
    if (const auto microbatch = step_.take_marked_microbatch()) {
      draw_conclusions(*microbatch);
    } else if (const auto execution = step_.take_marked_execution()) {
      wake_waiters(*execution);
    } else {
      return;
    }
  }
}

void GradientAccumulator::draw_conclusions(std::uint32_t number) {
  // By index, here and below: code of the user may run in between.
  for (std::size_t i = 0; i < step_.at(number).waiters.size(); ++i) {
    const auto waiter = step_.at(number).waiters[i];
    if (parameters_[waiter].waits_for == number) parameters_[waiter].waits_for = kNone;
    look_at(number, waiter);
  }
  step_.at(number).waiters.clear();
  if (!step_.at(number).done) return;
  for (ExecutionId id{number, 0}; id.number < step_.at(number).opened; ++id.number) {
    step_.at(id).closed = true;
  }
  for (ExecutionId id{number, 0}; id.number < step_.at(number).opened; ++id.number) {
    wake_waiters(id);
  }
  sums_.waiting().sum_up_rest(step_.at(number));
  own_.close(number);
  unplaced_.forget_gone();
}

/// Looks again at the parameters that waited for execution `id`, which has closed, and frees its
/// graph.
void GradientAccumulator::wake_waiters(ExecutionId id) {
  edge_list().swap(step_.at(id).roots);
  for (std::size_t i = 0; i < step_.at(id).waiters.size(); ++i) {
    const auto waiter = step_.at(id).waiters[i];
    if (sums_.at(step_.at(id.microbatch), waiter).blocker == id.number) {
      look_at(id.microbatch, waiter);
    }
  }
  step_.at(id).waiters.clear();
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
  auto& microbatch = step_.at(id.microbatch);
  sums_.waiting().arrive(gradients.at(0));
  const auto arrival = arrivals_++;
  if (after_first_backward || step_.at(id).after_first_backward) {
    auto node = owner_of<Node>(&leaf);
    LeafSum sum{std::move(node), at::GradMode::is_enabled(), std::move(gradients[0])};
    if (of_no_model(number) && step_.at(id).order == OrderKey()) {  // the body may read it next
      sums_.waiting().leave(sum);
      unplaced_.update(number, id.microbatch, std::move(sum));
    } else {
      microbatch.rest.push_back({number, id.number, arrival, std::move(sum)});
    }
  } else {
    const bool first =
        sums_.put(microbatch, number, leaf, {id.number, arrival, std::move(gradients[0])});
    if (first) ++parameters_[number].sums;
    look_at(id.microbatch, number);
  }
  sums_.waiting().note_most();
}

ParameterNumber GradientAccumulator::admit(const at::Tensor& parameter) {
  const auto number = numbers_.of(parameter);
  if (number >= parameters_.size()) parameters_.resize(numbers_.size());
  if (!parameters_[number].admitted) guard_(parameter);
  parameters_[number].admitted = true;
  return number;
}

// ---- what is certain ---------------------------------------------------------------------------

/// Finds out whether the sum of one cell is complete, and whether the parameter's turn moves on.
void GradientAccumulator::look_at(std::uint32_t number, ParameterNumber parameter) {
  auto& microbatch = step_.at(number);
  if (!microbatch.forward_done) {
    microbatch.waiters.push_back(parameter);
    return;
  }
  sums_.plan(microbatch);
  const auto turn = parameters_[parameter].turn;
  const bool complete = number != turn && sums_.advance(microbatch, parameter);
  if (number >= turn) return take_turns(parameter);
  // Nobody could know of a contribution to a microbatch that had its turn: a backward inside a
  // backward, as in checkpointing; or nobody waited for it.
  if (complete) apply_cell(number, parameter);
}

/// Adds the sums of one microbatch after the other to `.grad`, as far as they are complete.
void GradientAccumulator::take_turns(ParameterNumber number) {
  if (parameters_[number].applying) return;  // whoever applies goes on
  while (parameters_[number].sums > 0 && parameters_[number].turn < step_.size() &&
         turn_is_over(number)) {
    apply_cell(parameters_[number].turn++, number);
  }
}

/// True if the microbatch whose turn it is has given everything. If not, the parameter is
/// registered with what it waits for, and looked at again then.
bool GradientAccumulator::turn_is_over(ParameterNumber number) {
  auto& parameter = parameters_[number];
  auto& microbatch = step_.at(parameter.turn);
  if (microbatch.forward_done) {
    sums_.plan(microbatch);
    return sums_.advance(microbatch, number);
  }
  if (of_no_model(number)) return true;  // it is probably of the microbatch that uses it
  if (std::exchange(parameter.waits_for, parameter.turn) != parameter.turn) {
    microbatch.waiters.push_back(number);
  }
  return false;
}

// ---- into .grad --------------------------------------------------------------------------------

/// Adds the complete sum of one cell to `.grad`. All bookkeeping comes before hooks run, because
/// these may throw or suspend.
void GradientAccumulator::apply_cell(std::uint32_t microbatch, ParameterNumber number) {
  auto complete = sums_.take(step_.at(microbatch), number);
  if (!complete) return;  // it gave nothing
  --parameters_[number].sums;
  const auto leaf = complete->leaf;
  const bool applying = std::exchange(parameters_[number].applying, true);
  apply(std::move(*complete), number, microbatch, false);
  parameters_[number].applying = applying;
  tell_if_final(static_cast<const Leaf&>(*leaf), number);
}

void GradientAccumulator::tell_if_final(const Leaf& leaf, ParameterNumber number) {
  if (listener_ == nullptr || parameters_[number].turn < step_.size()) return;
  listener_->on_final(leaf.variable);
}

/// Runs the leaf's hooks, with a random stream of their own, and adds `sum` to `.grad`. Timing
/// decides which backward, and which fiber, completes a sum, so nothing may depend on that.
void GradientAccumulator::apply(LeafSum&& sum, ParameterNumber number, std::uint32_t microbatch,
                                bool after_first_backward) {
  sums_.waiting().leave(sum);
  std::optional<base::RandomScope> random;
  std::optional<LeafHooks> running;
  const bool hooked = has_hooks(*sum.leaf);
  if (hooked) running.emplace(microbatch, number, own_);
  if (auto* const scope = hooked ? ExecutionScope::current() : nullptr) {
    scope->settings().note_user_code();
  }
  if (random_key_ && hooked) {
    const auto& leaf = static_cast<const Leaf&>(*sum.leaf).variable;
    random.emplace(base::mix_key(random_key_(static_cast<int>(microbatch), leaf),
                                 after_first_backward ? "later hooks" : "hooks"));
  }
  if (of_no_model(number)) {
    unplaced_.update(number, microbatch, std::move(sum));
  } else {
    run_hooks_before(sum);
    own_.withdraw(number);
    add_to_leaf(std::move(sum), [&](const at::Tensor& parameter, const at::Tensor& gradient) {
      return wide_.add(number, parameter, gradient);
    });
  }
}

}  // namespace smp::server
