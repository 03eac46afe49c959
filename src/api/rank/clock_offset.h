// api/rank/clock_offset.h: what the steady clock of one rank shows when that of another shows 0, so
// that times of several machines can stand in one picture.
#pragma once

#include <functional>
#include <vector>

#include "base/clock.h"
#include "d2d/collectives/communicator.h"

namespace smp {

/// The offset of this rank's clock against that of the group's first member, in nanoseconds.
struct ClockOffset {
  base::Nanoseconds offset = 0;  ///< how much more this rank's clock shows
  base::Nanoseconds error = 0;   ///< the truth is within offset ± error
};

/// Measures the offset by messages there and back: the answer was given between question and
/// answer, and the round with the shortest time between them counts. All members call it; suspends
/// the fiber.
/// @param now           reads this rank's clock
/// @param shares_clock  for every member, the same on all: true if it has the first member's clock;
///                      then it is not asked
[[nodiscard]] ClockOffset clock_offset(const d2d::Communicator& ranks,
                                       const std::function<base::Nanoseconds()>& now,
                                       const std::vector<bool>& shares_clock);

}  // namespace smp
