// simulate/bodies.cpp: what ModuleServer does on pp_rank 0 when a body makes progress.
#include "simulate/bodies.h"

namespace smp::simulate {

Bodies::Bodies(StepState& step) : step_(step), progress_(step.progress.front()) {}

void Bodies::start() {
  while (const auto microbatch = progress_.start_next()) {
    const int body = step_.body_of(*microbatch);
    auto& own = step_.fibers[body];
    own.operation = step_.task_of(own).first;
    own.set_priority(step_.priority_of(own));
    own.newborn = true;
    step_.stages[0].ready.push(body, own.priority);
  }
}

bool Bodies::goes_on_to_backward(int fiber) {
  auto& own = step_.fibers[fiber];
  finish_forward(own);
  if (!progress_.may_begin_backward(own.microbatch)) return false;
  own.phase = schedule::Phase::kBackward;
  own.operation = step_.task_of(own).last;
  own.set_priority(step_.priority_of(own));
  return true;
}

bool Bodies::leaves_backward_to_loss(int fiber) {
  auto& own = step_.fibers[fiber];
  if (!progress_.gate_would_open(own.microbatch)) return false;
  finish_forward(own);
  own.phase = schedule::Phase::kBackward;
  own.set_priority(step_.priority_of(own));
  return true;
}

void Bodies::finish_forward(const SimulatedFiber& body) {
  step_.stages[0].polls = true;
  step_.end_elsewhere(body.microbatch);
  progress_.forward_finished(body.microbatch);
  open_gate();
  start();
}

void Bodies::finish(int fiber) {
  step_.stages[0].polls = true;
  step_.end_elsewhere(step_.fibers[fiber].microbatch);
  progress_.body_finished(step_.fibers[fiber].microbatch);
  open_gate();
  start();
}

void Bodies::open_gate() {
  for (const int microbatch : progress_.open_gate()) {
    const int body = step_.body_of(microbatch);
    step_.stages[0].ready.push(body, step_.fibers[body].priority);
  }
}

}  // namespace smp::simulate
