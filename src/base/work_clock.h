// base/work_clock.h: how long a thread worked, or waited by itself, but not how long it was kept
// from working by other programs.
#pragma once

#include "base/clock.h"

namespace smp::base {

/// Between two looks it goes on by the thread's processor time, or, if the thread gave its core
/// away meanwhile (a sleep, a file, a device that it waits for), by the time that went by. Threads:
/// the one that made it.
class WorkClock {
 public:
  WorkClock() noexcept;
  /// Since its construction. Two looks at clocks and one at the thread's counters.
  [[nodiscard]] Nanoseconds now() noexcept;
  /// What passed since the last look does not count.
  void skip() noexcept { last_ = look_at_start(); }
  /// Of the last now(): what the thread computed itself.
  [[nodiscard]] Nanoseconds on_core() const noexcept { return on_core_; }

 private:
  struct Look {
    Nanoseconds time, processor;
    long gave_away;  // how often
  };
  static Look look_at_end() noexcept;
  static Look look_at_start() noexcept;

  Look last_;
  Nanoseconds sum_ = 0;
  Nanoseconds on_core_ = 0;
};

}  // namespace smp::base
