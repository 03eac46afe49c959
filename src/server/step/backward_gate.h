// server/step/backward_gate.h: bodies that wait until the schedule lets them begin their backward.
#pragma once

#include "schedule/step_progress.h"
#include "server/step/waiting_fibers.h"

namespace smp::server {

/// Suspends the fibers of bodies until the schedule lets them begin their backward; the rule is in
/// schedule::StepProgress. Threads: the rank's.
class BackwardGate {
 public:
  /// Suspends the body of `microbatch` until `progress` lets it go on, or open_all() is called.
  void pass(schedule::StepProgress& progress, int microbatch);
  /// Wakes the bodies that `progress` lets go on.
  void open(schedule::StepProgress& progress);
  /// Wakes all bodies because the step failed; pass() does not wait any more.
  void open_all() noexcept;

 private:
  WaitingFibers waiting_;  // of a microbatch each
  bool closed_ = false;    // by open_all(): for good
};

}  // namespace smp::server
