// simulate/step_state.cpp: from the inbox of a stage to its ready fibers.
#include "simulate/step_state.h"

#include <utility>

namespace smp::simulate {

using base::Nanoseconds;

StepState::StepState(const StepProgram& step_program, const Machine& step_machine,
                     const SimulationOptions& step_options)
    : program(step_program),
      machine(step_machine),
      options(step_options),
      fibers(program.tasks.size() * static_cast<std::size_t>(options.microbatches)),
      stages(static_cast<std::size_t>(machine.stages)),
      tasks_left_(stages.size() * static_cast<std::size_t>(options.microbatches)) {
  for (std::size_t i = 0; i < fibers.size(); ++i) {
    fibers[i].task = static_cast<int>(i % program.tasks.size());
    fibers[i].microbatch = static_cast<int>(i / program.tasks.size());
    ++left_of(fibers[i]);
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
  auto& stage = stage_of(fibers[fiber]);
  const int last = std::exchange(stage.last_in_inbox, fiber);
  (last < 0 ? stage.first_in_inbox : fibers[last].next_in_inbox) = fiber;
}

void StepState::take_from_inbox(SimulatedStage& stage, bool all) {
  while (stage.first_in_inbox >= 0) {
    const int fiber = stage.first_in_inbox;
    auto& own = fibers[fiber];
    stage.first_in_inbox = std::exchange(own.next_in_inbox, -1);
    if (stage.first_in_inbox < 0) stage.last_in_inbox = -1;
    const auto arrived = std::exchange(own.arriving_bytes, 0);
    stage.add_live(arrived);
    own.parked_bytes += arrived;
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

int& StepState::left_of(const SimulatedFiber& fiber) {
  return tasks_left_[static_cast<std::size_t>(fiber.microbatch) * stages.size() +
                     static_cast<std::size_t>(task_of(fiber).stage)];
}

void StepState::end(const SimulatedFiber& fiber) {
  if (--left_of(fiber) > 0) return;
  auto& stage = stage_of(fiber);
  auto& own = progress[task_of(fiber).stage];
  own.ended_here(fiber.microbatch);
  release_held(stage);
  std::erase_if(stage.at_window, [&](int waiting) {
    if (!own.may_enter(fibers[waiting].microbatch)) return false;
    stage.ready.push(waiting, fibers[waiting].priority);
    return true;
  });
}

}  // namespace smp::simulate
