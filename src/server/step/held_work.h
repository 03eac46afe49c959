// server/step/held_work.h: executions that wait before they begin, so that their rank is free when
// what stands before them in its schedule comes. The rule is schedule/hold_rule.h.
#pragma once

#include "fiber/scheduler.h"
#include "schedule/hold_rule.h"
#include "server/running/execution_scope.h"
#include "server/step/step_state.h"

namespace smp::server {

/// Of one rank, from step to step. Threads: the rank's.
class HeldWork {
 public:
  HeldWork(fiber::Scheduler& scheduler, const base::Clock& clock)
      : scheduler_(scheduler), clock_(clock) {}

  /// Suspends the running fiber before it begins this work of `step`: for a bounded time, until
  /// nothing that stands before it is left to begin, or the step fails. Not in simulated time,
  /// where the order must not depend on how long things take.
  void hold(const StepState& step, schedule::Phase phase, int microbatch);

  /// Work was done, in so much time of the thread.
  void computed(schedule::Phase phase, base::Nanoseconds time) noexcept {
    rule_.computed(phase, time);
  }

  /// While it lives, what an execution computes is measured, if `step` has use for it.
  class Measured {
   public:
    Measured(HeldWork& held, const StepState& step, ExecutionScope& scope);
    ~Measured();
    Measured(const Measured&) = delete;
    Measured& operator=(const Measured&) = delete;

   private:
    HeldWork& held_;
    ExecutionScope* const scope_;  // nullptr: it is of no use
    const schedule::Phase phase_;
  };

 private:
  fiber::Scheduler& scheduler_;
  const base::Clock& clock_;
  schedule::HoldRule rule_;
};

}  // namespace smp::server
