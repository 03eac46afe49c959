// simulate/bodies.cpp: what ModuleServer does on pp_rank 0 when a body makes progress.
#include "simulate/bodies.h"

namespace smp::simulate {

Bodies::Bodies(StepState& step)
    : step_(step),
      progress_(*step.options.schedule, step.options.microbatches),
      elsewhere_(*step.options.schedule, step.options.microbatches) {}

void Bodies::start() {
  while (const auto microbatch = progress_.start_next()) {
    const int body = step_.body_of(*microbatch);
    auto& own = step_.fibers[body];
    own.operation = step_.program.tasks[0].first;
    own.set_priority(priority_of(own));
    own.newborn = true;
    step_.stages[0].ready.push(body, own.priority);
  }
}

bool Bodies::goes_on_to_backward(int fiber) {
  auto& own = step_.fibers[fiber];
  step_.stages[0].polls = true;
  const bool over = own.backward || step_.options.forward_only;
  over ? progress_.body_finished(own.microbatch) : progress_.forward_finished(own.microbatch);
  open_gate();
  start();
  if (over || !progress_.may_begin_backward(own.microbatch)) return false;
  own.backward = true;
  own.operation = step_.program.tasks[0].last;
  own.set_priority(priority_of(own));
  return true;
}

std::int64_t Bodies::priority_of(const SimulatedFiber& fiber) const {
  const auto phase = fiber.backward ? schedule::Phase::kBackward : schedule::Phase::kForward;
  const auto& progress = step_.task_of(fiber).stage == 0 ? progress_ : elsewhere_;
  return progress.priority(phase, fiber.microbatch);
}

void Bodies::open_gate() {
  for (const int microbatch : progress_.open_gate()) {
    const int body = step_.body_of(microbatch);
    step_.stages[0].ready.push(body, step_.fibers[body].priority);
  }
}

}  // namespace smp::simulate
