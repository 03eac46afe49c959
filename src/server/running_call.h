// server/running_call.h: what the rank's thread runs, as other threads may read it (watchdog.h).
#pragma once

#include <atomic>

namespace smp::server {

/// The innermost routed module that the process's ranks run. Written by their thread at every
/// switch of fibers and every call, so it holds no more than a few plain stores.
struct RunningCall {
  /// Lives as long as the process (ModuleTable::Entry::lasting_path); nullptr: no module runs.
  std::atomic<const char*> path{nullptr};
  std::atomic<int> rank{-1};
  std::atomic<int> microbatch{-1};
  std::atomic<bool> backward{false};

  void set(const char* running, int of_rank, int of_microbatch, bool in_backward) noexcept {
    rank.store(of_rank, std::memory_order_relaxed);
    microbatch.store(of_microbatch, std::memory_order_relaxed);
    backward.store(in_backward, std::memory_order_relaxed);
    path.store(running, std::memory_order_release);
  }
  void clear() noexcept { path.store(nullptr, std::memory_order_relaxed); }
};

/// Of this process: all of its ranks run on one thread.
extern RunningCall running_call;

}  // namespace smp::server
