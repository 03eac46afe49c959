// base/work_clock.h: how long a thread worked, or waited by itself, but not how long it was kept
// from working by other programs.
#pragma once

#include "base/clock.h"

namespace smp::base {

/// A clock of the time that a thread works. Between two readings it goes on by the thread's
/// processor time, or, if the thread gave its core away meanwhile (a sleep, a file, a device that
/// it waits for), by the time that went by. Threads: the one that made it.
class WorkClock {
 public:
  WorkClock() noexcept;
  /// Returns the nanoseconds since construction, without those that skip() left out. It reads two
  /// clocks and the thread's counters.
  [[nodiscard]] Nanoseconds now() noexcept;
  /// Leaves out the time since the last reading.
  void skip() noexcept { last_ = look_at_start(); }
  /// The part of the last now() that the thread was on a core, in nanoseconds.
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
