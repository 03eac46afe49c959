// schedule/rank_list.h: the list of one rank as a step reads it (schedule/list_schedule.h). Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/phase.h"
#include "schedule/schedule_lists.h"

namespace smp::schedule {

/// A value.
class RankList {
 public:
  /// @param actions  of the rank, in order; each at most once
  /// @param microbatches  they are numbered below that
  RankList(std::vector<Action> actions, int microbatches);

  const std::vector<Action>& actions() const noexcept { return actions_; }
  /// Of work in the list, from 0; what is not in it stands behind all.
  std::int64_t place(Phase phase, int microbatch) const noexcept {
    return places_[3 * static_cast<std::size_t>(microbatch) + kind_of(phase)];
  }
  bool has(Phase phase, int microbatch) const noexcept {
    return place(phase, microbatch) < static_cast<std::int64_t>(actions_.size());
  }
  int microbatches() const noexcept { return static_cast<int>(ends_before_.size()); }

  // When forward work of a microbatch may begin on the rank: once so many others have ended there.
  // A microbatch has ended on a rank when no work of it is left there, and nothing is kept.

  /// Microbatches, in the order in which they shall end.
  const std::vector<int>& ends() const noexcept { return ends_; }
  /// `microbatch` waits for so many, from the first of ends().
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

/// How far one rank has got in its list, in one step.
class ListProgress {
 public:
  /// @param list  outlives this object; nullptr: none, so nothing is ever overtaken
  /// @param microbatches  of the step: what the list says of others does not count
  ListProgress(const RankList* list, int microbatches);

  /// Work begins on the rank. May be said again.
  void begin(Phase phase, int microbatch);
  /// All that the rank has to do for `microbatch` is done, whatever of it there was.
  void end(int microbatch);
  /// Whether something that has not begun stands before this work.
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
