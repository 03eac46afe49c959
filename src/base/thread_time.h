// base/thread_time.h: the processor time of a thread that looks at it every few microseconds.
#pragma once

#include "base/clock.h"

namespace smp::base {

/// The processor time of a thread, asked for cheaply: thread_cpu_time() is a call of the kernel and
/// takes some tenths of a microsecond, so this calls it at most once in `trusted` nanoseconds and
/// assumes that the thread had its core in between. A time may be too long by `trusted`, and the
/// difference of two times wrong by as much either way. Threads: one.
class ThreadTime {
 public:
  /// @param trusted  nanoseconds; 0: asks the kernel every time
  explicit ThreadTime(Nanoseconds trusted = 0) noexcept : trusted_(trusted) {}

  /// Returns the thread's processor time in nanoseconds.
  /// @param now  the time of a Clock, not before that of the last call
  Nanoseconds at(Nanoseconds now) noexcept {
    if (asked_ && now - when_ < trusted_) return processor_ + (now - when_);
    asked_ = true;
    when_ = now;
    return processor_ = thread_cpu_time();
  }

 private:
  Nanoseconds trusted_;
  bool asked_ = false;
  Nanoseconds when_ = 0;       // the kernel was asked
  Nanoseconds processor_ = 0;  // what it said
};

}  // namespace smp::base
