// schedule/step_progress.h: which bodies of a step may start, and which may begin their backward.
// The module server and the simulator run this very class, so that they cannot disagree. Pure: no
// clock, no messages. Paper §4.3.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "schedule/phase.h"
#include "schedule/rank_list.h"
#include "schedule/schedule.h"

namespace smp::schedule {

/// One step under a schedule, as one rank sees it. Bodies and the gate are pp_rank 0's: after every
/// report (forward_finished, body_finished) ask open_gate(), then start_next() until it has
/// nothing. All ranks have priorities, and ask may_enter(). Microbatches are numbered from 0. Used
/// from one thread.
class StepProgress {
 public:
  /// @param schedule      must outlive this object
  /// @param microbatches  of the step, at least 0
  /// @throws UsageError   the schedule is for fewer microbatches
  StepProgress(const Schedule& schedule, int microbatches, int pp_rank = 0);

  /// Returns the next body that may start now, and counts it as started. Returns nothing if none
  /// may, or none is left.
  [[nodiscard]] std::optional<int> start_next();

  /// Tells that the body of `microbatch` reached its first backward(). Counts once, however often
  /// it is called.
  void forward_finished(int microbatch);

  /// Returns true if the body of `microbatch` may go on to its backward. If not, it waits at the
  /// gate until open_gate() names it, and asks again then.
  [[nodiscard]] bool may_begin_backward(int microbatch);

  /// True if the gate would be open once the forward of `microbatch`, and of no other, is finished
  /// too.
  [[nodiscard]] bool gate_would_open(int microbatch) const;

  /// Returns the bodies that waited at the gate and may go on now, in the order they came. They no
  /// longer count as waiting.
  [[nodiscard]] std::vector<int> open_gate();

  /// Returns true if forward work of `microbatch` may begin on this rank. Once it may, it always
  /// may. Until then it waits for lower microbatches to end here, so ask again after ended_here().
  /// May be asked of the same microbatch at any time, whatever it did here before.
  [[nodiscard]] bool may_enter(int microbatch) const;

  /// The next microbatch that may enter. Each is named once, whether anything of it waits or not:
  /// those at first that may enter from the beginning.
  [[nodiscard]] std::optional<int> next_to_enter();

  /// `microbatch` has no work left on this rank, and keeps nothing. May be said again.
  void ended_here(int microbatch);

  /// Tells, once, that the body of `microbatch` ended. If it never reached a backward(), its
  /// forward is finished now too. It has then ended on pp_rank 0.
  void body_finished(int microbatch);

  /// Tells that work of `microbatch` begins on this rank. May be called again.
  void begins(Phase phase, int microbatch) { place_.begin(phase, microbatch); }
  /// Returns how long the rank should stay free before it begins this work, as a multiple of its
  /// usual time: not 0 only if something stands before it in the rank's list that has not begun.
  [[nodiscard]] double hold(Phase phase, int microbatch) const noexcept {
    return place_.overtakes(phase, microbatch) ? schedule_->hold(progress_.pp_rank, phase) : 0;
  }

  [[nodiscard]] bool all_finished() const noexcept {
    return progress_.finished == progress_.microbatches;
  }
  /// True if this rank has a list: then may_enter() may be false, and hold() more than 0.
  [[nodiscard]] bool has_list() const noexcept { return list_ != nullptr; }
  /// True if the backward of `microbatch` is in two parts on this rank.
  [[nodiscard]] bool splits_backward(int microbatch) const noexcept {
    return schedule_->splits_backward(progress_.pp_rank, microbatch);
  }
  [[nodiscard]] int microbatches() const noexcept { return progress_.microbatches; }
  [[nodiscard]] const Progress& progress() const noexcept { return progress_; }

  /// Returns the order of what is ready on one rank: smaller runs first. At least 0.
  [[nodiscard]] std::int64_t priority(Phase phase, int microbatch) const {
    return schedule_->priority(phase, microbatch, progress_);
  }

 private:
  struct Body {
    bool forward_finished = false;
    bool at_gate = false;
    bool finished = false;
    bool ended_here = false;
  };

  Body& started_body(int microbatch);

  const Schedule* schedule_;
  const RankList* list_;  // nullptr: none
  ListProgress place_;
  int ends_ = 0;               // from the first of list_->ends(): those that have ended
  std::vector<int> entering_;  // microbatches as they may enter; none without a list
  std::size_t entered_ = 0;    // of these: next_to_enter() has named them
  Progress progress_;
  std::vector<Body> bodies_;  // by microbatch
  std::vector<int> gate_;     // who waits there, in the order they came
};

}  // namespace smp::schedule
