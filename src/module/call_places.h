// module/call_places.h: names for what running code does together with ranks that run the same
// program on other samples: the same on all of them, whatever order their fibers run in
// (docs/design.md, Order keys).
#pragma once

#include <cstdint>
#include <optional>

namespace smp::module {

/// One place in the program: step, microbatch, module call, and the position among what that call
/// does one after another.
struct CallPlace {
  std::uint64_t step = 0;  ///< from 1
  std::uint64_t key = 0;   ///< identifies the place within its step and microbatch
  const char* path = "";   ///< path of the module that runs; lives as long as the process
  int microbatch = -1;
  bool forward = true;
};

/// Names the places that the running fiber comes to. Threads: the rank's.
class CallPlaces {
 public:
  virtual ~CallPlaces() = default;
  /// Returns a new place at each call; nothing outside of steps.
  virtual std::optional<CallPlace> next() = 0;
};

}  // namespace smp::module
