// base/heartbeat.h: counts how often a rank's thread comes back to this library, for whoever looks
// on from another thread (server/watchdog.h).
#pragma once

#include <atomic>
#include <cstdint>

namespace smp::base {

/// Since the process began. Any thread may read it.
extern std::atomic<std::uint64_t> heartbeats;

/// Called wherever module code comes back: calls, polls, switches of fibers, nodes of a backward
/// pass. A count that two threads lose does not matter, so no bus is locked for it.
inline void beat() noexcept {
  heartbeats.store(heartbeats.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace smp::base
