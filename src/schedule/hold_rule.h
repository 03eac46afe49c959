// schedule/hold_rule.h: how long a rank that has nothing to do at its place in the list stays free
// for what comes next there, before it begins something that stands later. The runtime and the
// simulator run this very code. Pure: the caller tells the time. docs/schedules.md.
#pragma once

#include <array>
#include <cstddef>

#include "base/clock.h"
#include "schedule/phase.h"

namespace smp::schedule {

/// Decides how long one rank stays free, from step to step. Used from one thread.
///
/// Work that is begun too early is in the way of what is due: where no more microbatches are kept
/// than the list needs, waiting is faster. It has limits, since what the list names next may never
/// be asked for: for each execution, a multiple of what one like it usually takes; and in all, a
/// share of the time computed for waits that were in vain.
class HoldRule {
 public:
  /// Returns the longest wait before work of this kind, in nanoseconds; 0: none.
  /// @param share  of its usual time (RankList::hold())
  [[nodiscard]] base::Nanoseconds longest(Phase phase, double share) const noexcept;

  /// Tells that work was done, which took `time` without pauses.
  void computed(Phase phase, base::Nanoseconds time) noexcept;
  /// Tells that a wait of `time` is over, and the work for which the rank waited has not begun.
  void waited_in_vain(base::Nanoseconds time) noexcept { in_vain_ += time; }

 private:
  static constexpr std::size_t kPhases = 6;

  std::array<double, kPhases> usual_ = {};  // by phase: moving average, in ns; 0: none was done
  base::Nanoseconds computed_ = 0;
  base::Nanoseconds in_vain_ = 0;
};

}  // namespace smp::schedule
