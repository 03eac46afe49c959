// schedule/rank_list.h: the list of one rank as a step reads it (schedule/list_schedule.h). Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/phase.h"
#include "schedule/schedule_lists.h"

namespace smp::schedule {

/// The list of one rank, as a value.
class RankList {
 public:
  /// @param actions  those of the rank, in order; each at most once
  /// @param microbatches  their number; they are numbered from 0
  RankList(std::vector<Action> actions, int microbatches);

  const std::vector<Action>& actions() const noexcept { return actions_; }
  /// Returns the position in the list of some work, from 0; work that is not in it comes after all.
  std::int64_t place(Phase phase, int microbatch) const noexcept {
    return places_[3 * static_cast<std::size_t>(microbatch) + kind_of(phase)];
  }
  bool has(Phase phase, int microbatch) const noexcept {
    return place(phase, microbatch) < static_cast<std::int64_t>(actions_.size());
  }
  int microbatches() const noexcept { return static_cast<int>(ends_before_.size()); }

  // When forward work of a microbatch may begin on the rank: once so many others have ended there.
  // A microbatch has ended on a rank when no work of it is left there, and nothing is kept.

  /// The microbatches in the order in which they shall end on the rank.
  const std::vector<int>& ends() const noexcept { return ends_; }
  /// Returns how many microbatches, from the first of ends(), must end before `microbatch` may
  /// begin.
  int ends_before(int microbatch) const noexcept {
    return ends_before_[static_cast<std::size_t>(microbatch)];
  }

 private:
  static constexpr std::size_t kind_of(Phase phase) noexcept {
    return phase == Phase::kForward ? 0 : phase == Phase::kWeightGradient ? 2 : 1;
  }

  std::vector<Action> actions_;
  std::vector<std::int64_t> places_;  // by microbatch; forward, backward, weight gradients
  std::vector<int> ends_, ends_before_;
};

/// The progress of one rank in its list, in one step.
class ListProgress {
 public:
  /// @param list  outlives this object; nullptr: the rank has none, so nothing is ever overtaken
  /// @param microbatches  of the step: what the list says of others does not count
  ListProgress(const RankList* list, int microbatches);

  /// Tells that work begins on the rank. May be called again for the same work.
  void begin(Phase phase, int microbatch);
  /// Tells that all work of the rank for `microbatch` is done, whatever there was of it.
  void end(int microbatch);
  /// True if something that has not begun stands before this work in the list.
  bool overtakes(Phase phase, int microbatch) const noexcept {
    return list_ != nullptr && list_->place(phase, microbatch) > next_;
  }

 private:
  void mark(std::int64_t place) noexcept;
  void advance() noexcept;

  const RankList* list_;
  int microbatches_;
  std::vector<bool> begun_;  // by place
  std::int64_t next_ = 0;    // all before it have begun
};

}  // namespace smp::schedule
