// base/turns.h: when a fiber that is about to compute gives way, and how long it waits for answers
// that are due. Pure; the fiber scheduler and the simulator run the same code.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace smp::base {

/// Computing for longer than this without looking for answers holds others up.
inline constexpr Nanoseconds kLongWork = 100 * kMicrosecond;

/// How long a turn may wait for answers that are due, if the last turn was `since_last` ago: at
/// most 1/50 of that time. 0: not at all, since a very short wait is not worth its cost.
constexpr Nanoseconds patience(Nanoseconds since_last) noexcept {
  constexpr Nanoseconds kShare = 50, kLeast = 20 * kMicrosecond, kMost = 500 * kMicrosecond;
  const auto share = std::min(since_last / kShare, kMost);
  return share < kLeast ? 0 : share;
}

}  // namespace smp::base
