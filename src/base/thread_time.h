// base/thread_time.h: the processor time of a thread that looks at it every few microseconds.
#pragma once

#include "base/clock.h"

namespace smp::base {

/// thread_cpu_time() is a call of the kernel and takes some tenths of a microsecond. This asks at
/// most once in `trusted` nanoseconds and takes the thread to have had its core in between. So what
/// is told may be too much by so long, and the difference of two such times wrong by so long either
/// way. Threads: one.
class ThreadTime {
 public:
  /// @param trusted  0: asks every time
  explicit ThreadTime(Nanoseconds trusted = 0) noexcept : trusted_(trusted) {}

  /// @param now  of a Clock, not before that of the last call
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
