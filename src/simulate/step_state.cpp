// simulate/step_state.cpp: from the inbox of a stage to its ready fibers.
#include "simulate/step_state.h"

#include <utility>

namespace smp::simulate {

StepState::StepState(const StepProgram& step_program, const Machine& step_machine,
                     const SimulationOptions& step_options)
    : program(step_program),
      machine(step_machine),
      options(step_options),
      fibers(program.tasks.size() * static_cast<std::size_t>(options.microbatches)),
      stages(static_cast<std::size_t>(machine.stages)) {
  for (std::size_t i = 0; i < fibers.size(); ++i) {
    fibers[i].task = static_cast<int>(i % program.tasks.size());
    fibers[i].microbatch = static_cast<int>(i / program.tasks.size());
  }
  for (auto& stage : stages) stage.yield_policy = schedule::YieldPolicy(machine.patient);
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
    stage.ready.push(fiber, own.priority);
    if (!all) return;
  }
}

int StepState::take_ready(SimulatedStage& stage) {
  const int fiber = stage.ready.pop();
  auto& own = fibers[fiber];
  if (std::exchange(own.awaiting, false)) --stage.awaiting;
  // The server's bodies count as passing on until they compute, so that all of them begin.
  if (std::exchange(own.newborn, false)) own.priority = schedule::passing_on(own.priority);
  return fiber;
}

}  // namespace smp::simulate
