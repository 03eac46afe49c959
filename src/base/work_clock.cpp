// base/work_clock.cpp: the kernel counts separately how often a thread gave its core away by itself
// and how often it was taken.
#include "base/work_clock.h"

#include <sys/resource.h>

namespace smp::base {

WorkClock::WorkClock() noexcept : last_(look()) {}

WorkClock::Look WorkClock::look() noexcept {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return {SteadyClock().now(), thread_cpu_time(), usage.ru_nvcsw};
}

Nanoseconds WorkClock::now() noexcept {
  const auto now = look();
  sum_ +=
      now.gave_away != last_.gave_away ? now.time - last_.time : now.processor - last_.processor;
  on_core_ += now.processor - last_.processor;
  last_ = now;
  return sum_;
}

}  // namespace smp::base
