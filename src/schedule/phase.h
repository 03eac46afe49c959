// schedule/phase.h: what kind of work an execution is, and what a rank does between steps.
#pragma once

#include <cstdint>

namespace smp::schedule {

/// The kinds of work. The numbers are those of trace files.
enum class Phase : std::uint8_t {
  kForward = 0,
  kBackward = 1,
  kOptimizer = 2,       ///< between steps: an optimizer's step
  kOther = 3,           ///< between steps: this library, which gets a step ready or ends it
  kWeightGradient = 4,  ///< the second part of a split backward, which nobody waits for
  kHost = 5,            ///< between steps: the program's own code, say what loads data
};

}  // namespace smp::schedule
