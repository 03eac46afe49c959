// alive/heartbeat.h: counts how often a rank's thread comes back to this library, for whoever looks
// on from another thread (alive/watchdog.h) or another process (alive/pulse.h).
#pragma once

#include "alive/pulse.h"

namespace smp::base {

/// Counts one beat. Called wherever module code comes back to the library: calls, polls, switches
/// of fibers, nodes of a backward pass. If two threads lose a count it does not matter, so no
/// atomic read-modify-write is paid for.
inline void beat() noexcept {
  auto& beats = own_pulse().beats;
  beats.store(beats.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace smp::base
