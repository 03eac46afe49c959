// base/keep_until_exit.h: what must not end, because somebody else may still use its memory.
// Threads: any.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

namespace smp::base {

/// Keeps `thing` without ever destroying it, not even when the process exits. It stays reachable,
/// so that tools that look for leaks do not report it.
template <class Thing>
void keep_until_exit(Thing thing) {
  static auto& mutex = *new std::mutex;
  static auto& kept = *new std::vector<Thing>;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(thing));
}

}  // namespace smp::base
