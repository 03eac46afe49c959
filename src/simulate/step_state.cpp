// simulate/step_state.cpp: from the inbox of a stage to its ready fibers.
#include "simulate/step_state.h"

#include <algorithm>
#include <utility>

namespace smp::simulate {

using base::Nanoseconds;

StepState::StepState(const StepProgram& step_program, const Machine& step_machine,
                     const SimulationOptions& step_options)
    : program(step_program),
      machine(step_machine),
      options(step_options),
      stages(static_cast<std::size_t>(machine.stages)),
      gradients(step_program, step_options.microbatches,
                step_options.forward_only ? nullptr : step_options.gradients),
      tasks_left_(stages.size() * static_cast<std::size_t>(options.microbatches)) {
  for (int microbatch = 0; microbatch < options.microbatches; ++microbatch) {
    const auto traced = static_cast<std::size_t>(microbatch) % program.num_traced();
    bodies_.push_back(static_cast<int>(fibers.size()));
    for (int task = program.bodies[traced]; task < program.end_of(traced); ++task) {
      auto& fiber = fibers.emplace_back();
      fiber.task = task;
      fiber.microbatch = microbatch;
      ++left_of(microbatch, task_of(fiber).stage);
    }
  }
  std::replace(tasks_left_.begin(), tasks_left_.end(), 0, kUntouched);
  const auto expected = gradients.expected(machine.stages);
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    if (options.record) stages[stage].tally.memory.record();
    stages[stage].tally.memory.add(-expected[stage], now);
  }
  progress.reserve(stages.size());
  for (auto& stage : stages) {
    stage.yield_policy = schedule::YieldPolicy(machine.patient);
    const int pp_rank = static_cast<int>(progress.size());
    progress.emplace_back(*options.schedule, options.microbatches, pp_rank);
  }
}

bool StepState::more_happens_now(Moment moment) const noexcept {
  return !events.empty() && events.next().time == now && events.next().moment < moment;
}

void StepState::put_in_inbox(int fiber) {
  auto& own = fibers[fiber];
  auto& stage = stage_of(own);
  const int last = std::exchange(stage.last_in_inbox, fiber);
  (last < 0 ? stage.first_in_inbox : fibers[last].next_in_inbox) = fiber;
  if (stage.first_unread < 0) stage.first_unread = fiber;
  if (!stage.is_busy(now)) own.holder = -1;  // it is read at this moment
  if (own.holder >= 0) memory_of(own.holder).add(own.arriving_bytes, now);
}

void StepState::read_inbox(SimulatedStage& stage) {
  int fiber = std::exchange(stage.first_unread, -1);
  for (; fiber >= 0; fiber = fibers[fiber].next_in_inbox) {
    auto& own = fibers[fiber];
    const int holder = std::exchange(own.holder, -1);
    if (holder >= 0) memory_of(holder).add(-own.arriving_bytes, now);
    stage.tally.memory.add(own.arriving_bytes, now);
  }
}

void StepState::take_from_inbox(SimulatedStage& stage, bool all) {
  read_inbox(stage);
  while (stage.first_in_inbox >= 0) {
    const int fiber = stage.first_in_inbox;
    auto& own = fibers[fiber];
    stage.first_in_inbox = std::exchange(own.next_in_inbox, -1);
    if (stage.first_in_inbox < 0) stage.last_in_inbox = -1;
    own.parked_bytes += std::exchange(own.arriving_bytes, 0);
    const bool waits =
        std::exchange(own.enters, false) && !progress[task_of(own).stage].may_enter(own.microbatch);
    waits ? stage.at_window.push_back(fiber) : stage.ready.push(fiber, own.priority);
    if (!all && !waits) return;
  }
}

Nanoseconds StepState::longest_hold(const SimulatedFiber& fiber) const {
  const int stage = task_of(fiber).stage;
  const double share = progress[stage].hold(fiber.phase, fiber.microbatch);
  const auto longest = stages[stage].hold_rule.longest(fiber.phase, share);
  return fiber.held_since < 0 ? longest : fiber.held_since + longest - now;
}

void StepState::release_held(SimulatedStage& stage) {
  std::erase_if(stage.held, [&](int held) {
    const auto& fiber = fibers[held];
    if (longest_hold(fiber) > 0) return false;
    stage.ready.push(held, fiber.priority);
    return true;
  });
}

int StepState::take_ready(SimulatedStage& stage) {
  const int fiber = stage.ready.pop();
  auto& own = fibers[fiber];
  if (std::exchange(own.awaiting, false)) --stage.awaiting;
  // The server's bodies count as passing on until they compute, so that all of them begin.
  if (std::exchange(own.newborn, false)) own.priority = schedule::passing_on(own.priority);
  return fiber;
}

std::int64_t StepState::priority_of(const SimulatedFiber& fiber) const {
  return progress[task_of(fiber).stage].priority(fiber.phase, fiber.microbatch);
}

bool StepState::splits_backward(const SimulatedFiber& fiber) const {
  return options.schedule->splits_backward(task_of(fiber).stage, fiber.microbatch);
}

int& StepState::left_of(int microbatch, int stage) {
  return tasks_left_[static_cast<std::size_t>(microbatch) * stages.size() +
                     static_cast<std::size_t>(stage)];
}

void StepState::end(const SimulatedFiber& fiber) {
  const int stage = task_of(fiber).stage;
  if (--left_of(fiber.microbatch, stage) == 0) end_on(stage, fiber.microbatch);
}

void StepState::end_elsewhere(int microbatch) {
  for (int stage = 0; stage < machine.stages; ++stage) {
    if (left_of(microbatch, stage) != kUntouched) continue;
    left_of(microbatch, stage) = 0;
    end_on(stage, microbatch);
    events.post(now, Moment::kDispatch, stage);
  }
}

void StepState::end_on(int stage, int microbatch) {
  auto& own = progress[stage];
  own.ended_here(microbatch);
  release_held(stages[stage]);
  std::erase_if(stages[stage].at_window, [&](int waiting) {
    if (!own.may_enter(fibers[waiting].microbatch)) return false;
    stages[stage].ready.push(waiting, fibers[waiting].priority);
    return true;
  });
}

}  // namespace smp::simulate
