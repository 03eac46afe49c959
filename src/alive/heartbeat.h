// alive/heartbeat.h: counts how often a rank's thread comes back to this library, for whoever looks
// on from another thread (alive/watchdog.h) or another process (alive/pulse.h).
#pragma once

#include "alive/pulse.h"

namespace smp::base {

/// Called wherever module code comes back: calls, polls, switches of fibers, nodes of a backward
/// pass. A count that two threads lose does not matter, so no bus is locked for it.
inline void beat() noexcept {
  auto& beats = own_pulse().beats;
  beats.store(beats.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace smp::base
