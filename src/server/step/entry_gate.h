// server/step/entry_gate.h: requests whose microbatch may not enter this rank yet, because the
// schedule's window is full (schedule/list_schedule.h, docs/schedules.md).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "schedule/step_progress.h"
#include "server/step/worker_pool.h"

namespace smp::server {

/// The gate of one rank in one step. Forward work of a microbatch waits here, without a fiber,
/// until the microbatches that must end first have ended on this rank: nothing calls them any more
/// in their forward, none of their work runs here, and no record of theirs is kept. It waits for
/// lower microbatches only, so never in a circle. Does nothing on pp_rank 0, where a microbatch
/// ends with its body, and where the schedule has no windows. Threads: the rank's; all of it is
/// safe in a poll.
class EntryGate {
 public:
  /// @param progress  the progress of the step; must outlive this object
  explicit EntryGate(schedule::StepProgress& progress);

  /// Takes `task` if its microbatch may not enter yet. @return true if it was taken
  bool holds(ForwardTask& task);
  /// Removes and returns the requests that may enter now, in the order they came. Must be called
  /// whenever something has ended.
  std::vector<ForwardTask> take_entering();

  /// Counts the work and the records of `microbatch` on this rank: keep() when one begins to exist,
  /// drop() when one is gone.
  void keep(int microbatch) noexcept;
  void drop(int microbatch);
  /// Notes that the forward of `microbatch` is done on all ranks. May be called repeatedly.
  void forward_done(int microbatch);
  /// Notes that nothing of `microbatch` runs on any rank.
  void microbatch_done(int microbatch);

  /// The microbatch and module of each request that waits.
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
