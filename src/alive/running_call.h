// alive/running_call.h: what the rank's thread runs, as other threads and processes may read it
// (watchdog.h, silent_rank.h), and signal handlers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "alive/pulse.h"

namespace smp::server {

/// The innermost routed module that the process's ranks run. Written by their thread at every
/// switch of fibers and every call, so it holds no more than a few plain stores.
class RunningCall {
 public:
  /// Notes the module that runs.
  /// @param path  must live as long as the process (ModuleTable::Entry::lasting_path)
  void set(const char* path, int rank, std::int32_t module, int microbatch,
           bool backward) noexcept {
    constexpr auto kRelaxed = std::memory_order_relaxed;
    auto& pulse = base::own_pulse();
    rank_.store(rank, kRelaxed);
    pulse.module.store(module, kRelaxed);
    pulse.microbatch.store(microbatch, kRelaxed);
    pulse.backward.store(backward, kRelaxed);
    pulse.running.store(true, kRelaxed);
    path_.store(path, std::memory_order_release);
  }
  /// Notes that the thread has left the module.
  void clear() noexcept { base::own_pulse().running.store(false, std::memory_order_relaxed); }

  [[nodiscard]] bool running() const noexcept { return base::own_pulse().running.load(); }
  /// Writes "rank 2, module encoder.block.3 (forward), microbatch 1", of the module that runs, or
  /// of the last one that did ("between modules; the last was"), or of the rank alone; "" if there
  /// is none. Any thread, and signal handlers.
  void describe(char* text, std::size_t size) const noexcept;

 private:
  std::atomic<const char*> path_{nullptr};  // nullptr: no module ran yet
  std::atomic<int> rank_{-1};
};

/// A module's path as people read it: "<root>" for the whole model, whose path is empty.
inline const char* shown(const char* path) noexcept { return *path == '\0' ? "<root>" : path; }

/// The running call of this process, all of whose ranks run on one thread.
extern RunningCall running_call;

}  // namespace smp::server
