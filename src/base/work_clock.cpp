// base/work_clock.cpp: the kernel counts separately how often a thread gave its core away by itself
// and how often it was taken.
#include "base/work_clock.h"

#include <sys/resource.h>

namespace smp::base {

WorkClock::WorkClock() noexcept : last_(look_at_start()) {}

// To look takes about as long as the smallest operator, so the clocks are read first where a time
// ends, and last where one begins.

WorkClock::Look WorkClock::look_at_end() noexcept {
  const Nanoseconds processor = thread_cpu_time();
  const Nanoseconds time = SteadyClock().now();
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return {time, processor, usage.ru_nvcsw};
}

WorkClock::Look WorkClock::look_at_start() noexcept {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  const Nanoseconds time = SteadyClock().now();
  return {time, thread_cpu_time(), usage.ru_nvcsw};
}

Nanoseconds WorkClock::now() noexcept {
  const auto now = look_at_end();
  sum_ +=
      now.gave_away != last_.gave_away ? now.time - last_.time : now.processor - last_.processor;
  on_core_ += now.processor - last_.processor;
  last_ = now;
  return sum_;
}

}  // namespace smp::base
