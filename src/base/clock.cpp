// base/clock.cpp: the real clocks.
#include "base/clock.h"

#include <ctime>

namespace smp::base {
namespace {

Nanoseconds read(clockid_t id) noexcept {
  timespec time{};
  clock_gettime(id, &time);
  return Nanoseconds{time.tv_sec} * kSecond + time.tv_nsec;
}

}  // namespace

Nanoseconds SteadyClock::now() const noexcept { return read(CLOCK_MONOTONIC); }

Nanoseconds thread_cpu_time() noexcept { return read(CLOCK_THREAD_CPUTIME_ID); }

const char* utc_timestamp(char (&buffer)[32]) noexcept {
  const std::time_t seconds = std::time(nullptr);
  std::tm broken_down{};
  gmtime_r(&seconds, &broken_down);
  std::strftime(buffer, sizeof buffer, "%Y-%m-%dT%H:%M:%SZ", &broken_down);
  return buffer;
}

}  // namespace smp::base
