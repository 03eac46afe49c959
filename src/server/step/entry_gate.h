// server/step/entry_gate.h: requests whose microbatch may not enter this rank yet, because the
// schedule's window is full (schedule/list_schedule.h, docs/schedules.md).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "schedule/step_progress.h"
#include "server/step/worker_pool.h"

namespace smp::server {

/// Of one step on one rank. Forward work of a microbatch waits here, without a fiber, until those
/// that must end first have ended on this rank: nothing calls them any more in their forward, none
/// of their work runs here, and no record of theirs is kept. It waits for lower microbatches only,
/// so never in a circle. Does nothing on pp_rank 0, where a microbatch ends with its body, and
/// where the schedule has no windows. Threads: the rank's; all of it is safe in a poll.
class EntryGate {
 public:
  /// @param progress  of the step, outlives this object
  explicit EntryGate(schedule::StepProgress& progress);

  /// Takes `task` if its microbatch may not enter yet. @return whether it did
  bool holds(ForwardTask& task);
  /// Those that may enter now, in the order they came. To be asked for whenever something ended.
  std::vector<ForwardTask> take_entering();

  /// Work of `microbatch` here, or a record of it, begins to exist, or is gone.
  void keep(int microbatch) noexcept;
  void drop(int microbatch);
  /// The forward of `microbatch` is done, on all ranks. May be said again.
  void forward_done(int microbatch);
  /// Nothing of `microbatch` runs anywhere.
  void microbatch_done(int microbatch);

  /// Microbatch and module of each request that waits.
  std::vector<std::pair<std::int32_t, ModuleId>> waiting() const;

 private:
  struct Microbatch {
    int kept = 0;
    bool forward_done = false;
  };
  void end_if_done(int microbatch);

  schedule::StepProgress& progress_;
  std::vector<Microbatch> microbatches_;  // none if it does nothing
  std::vector<ForwardTask> waiting_;      // in the order they came
};

}  // namespace smp::server
