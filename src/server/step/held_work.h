// server/step/held_work.h: executions that wait before they begin, so that their rank is free when
// what stands before them in its schedule comes. The rule is schedule/hold_rule.h.
#pragma once

#include "fiber/scheduler.h"
#include "schedule/hold_rule.h"
#include "server/running/execution_scope.h"
#include "server/step/step_state.h"

namespace smp::server {

/// Holds executions of one rank back, from step to step. Threads: the rank's.
class HeldWork {
 public:
  HeldWork(fiber::Scheduler& scheduler, const base::Clock& clock)
      : scheduler_(scheduler), clock_(clock) {}

  /// Suspends the running fiber before it begins this work of `step`: for a bounded time, at most
  /// until nothing that stands before it in the schedule is left to begin, or the step fails. Does
  /// nothing in simulated time, where the order must not depend on how long things take.
  void hold(const StepState& step, schedule::Phase phase, int microbatch);

  /// Notes that work of `phase` was done, which took `time` (ns) of the thread.
  void computed(schedule::Phase phase, base::Nanoseconds time) noexcept {
    rule_.computed(phase, time);
  }

  /// Measures, while it lives, for how long an execution has the thread, if `step` has use for
  /// that.
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
