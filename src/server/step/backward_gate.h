// server/step/backward_gate.h: bodies that wait until the schedule lets them begin their backward.
#pragma once

#include "schedule/step_progress.h"
#include "server/step/waiting_fibers.h"

namespace smp::server {

/// The rule is schedule::StepProgress; here are the fibers. Threads: the rank's.
class BackwardGate {
 public:
  /// Suspends the body of `microbatch` until `progress` lets it go on, or open_all().
  void pass(schedule::StepProgress& progress, int microbatch);
  /// Wakes those that `progress` lets go on.
  void open(schedule::StepProgress& progress);
  /// The step failed: nobody waits any more.
  void open_all() noexcept;

 private:
  WaitingFibers waiting_;  // of a microbatch each
  bool closed_ = false;    // by open_all(): for good
};

}  // namespace smp::server
