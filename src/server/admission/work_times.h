// server/admission/work_times.h: how long executions of a rank compute, from step to step: what its
// work is held by (schedule/hold_rule.h).
#pragma once

#include "base/clock.h"
#include "schedule/hold_rule.h"
#include "schedule/step_progress.h"
#include "server/running/execution_scope.h"

namespace smp::server {

/// Threads: the rank's.
class WorkTimes {
 public:
  explicit WorkTimes(const base::Clock& clock) : clock_(clock) {}

  const base::Clock& clock() const noexcept { return clock_; }
  schedule::HoldRule& rule() noexcept { return rule_; }

  /// While it lives, what an execution computes is measured, if the step has use for it.
  class Measured {
   public:
    Measured(WorkTimes& times, const schedule::StepProgress& progress, ExecutionScope& scope);
    ~Measured();
    Measured(const Measured&) = delete;
    Measured& operator=(const Measured&) = delete;

   private:
    WorkTimes& times_;
    ExecutionScope* const scope_;  // nullptr: it is of no use
    const schedule::Phase phase_;
  };

 private:
  const base::Clock& clock_;
  schedule::HoldRule rule_;
};

}  // namespace smp::server
