// module/call_places.h: names for what running code does together with ranks that run the same
// program on other samples: the same on all of them, whatever order their fibers run in
// (docs/design.md, Order keys).
#pragma once

#include <cstdint>
#include <optional>

namespace smp::module {

/// One place in the program: of a step, a microbatch, a call, and what that does one after another.
struct CallPlace {
  std::uint64_t step = 0;  ///< from 1
  std::uint64_t key = 0;   ///< of the place in the step, by microbatch
  const char* path = "";   ///< of the module that runs; lasts as long as the process
  int microbatch = -1;
  bool forward = true;
};

/// Threads: the rank's.
class CallPlaces {
 public:
  virtual ~CallPlaces() = default;
  /// Another one at each call; nothing outside of steps.
  virtual std::optional<CallPlace> next() = 0;
};

}  // namespace smp::module
