// server/running/stopwatch.h: for how long a fiber's work has the thread.
#pragma once

#include "base/clock.h"

namespace smp::server {

/// Measures for how long an execution has the thread. It stands still until start(). Threads: the
/// rank's.
class Stopwatch {
 public:
  /// Starts anew, while the execution has the thread. `clock` must live until stop().
  void start(const base::Clock& clock) noexcept {
    clock_ = &clock;
    before_ = 0;
    since_ = clock.now();
  }
  void stop() noexcept { clock_ = nullptr; }
  /// Returns the time for which the execution had the thread since start(), in ns; 0 when stopped.
  /// Must be called while it has the thread, or as it leaves it.
  base::Nanoseconds elapsed() const noexcept {
    return clock_ == nullptr ? 0 : before_ + clock_->now() - since_;
  }
  /// Notes that the execution has the thread again, or leaves it.
  void on_switch(bool running) noexcept {
    if (clock_ == nullptr) return;
    if (!running) before_ = elapsed();
    since_ = clock_->now();
  }

 private:
  const base::Clock* clock_ = nullptr;  // nullptr: stopped
  base::Nanoseconds before_ = 0;        // up to when it last left the thread
  base::Nanoseconds since_ = 0;         // it has the thread
};

}  // namespace smp::server
