// schedule/phase.h: what kind of work an execution is.
#pragma once

#include <cstdint>

namespace smp::schedule {

/// The numbers are those of trace files.
enum class Phase : std::uint8_t {
  kForward = 0,
  kBackward = 1,
  kOptimizer = 2,
  kOther = 3,
  kWeightGradient = 4,  ///< of a backward in two parts, the one that nobody waits for
};

}  // namespace smp::schedule
