// base/clock.h: the only source of time in the library, so that tests and the simulator own it.
#pragma once

#include <cstdint>

namespace smp::base {

using Nanoseconds = std::int64_t;

inline constexpr Nanoseconds kMicrosecond = 1'000;
inline constexpr Nanoseconds kMillisecond = 1'000'000;
inline constexpr Nanoseconds kSecond = 1'000'000'000;

/// A source of monotonic time. It is not synchronised between machines.
class Clock {
 public:
  virtual ~Clock() = default;
  /// Returns the nanoseconds since an arbitrary, fixed point.
  virtual Nanoseconds now() const noexcept = 0;
};

/// The real clock, CLOCK_MONOTONIC: all processes of a machine read the same time.
class SteadyClock final : public Clock {
 public:
  Nanoseconds now() const noexcept override;
};

/// Returns the CPU time used by the calling thread, in nanoseconds.
Nanoseconds thread_cpu_time() noexcept;

/// Writes the UTC wall-clock time to `buffer` as "2026-11-21T14:05:09Z", for file names and result
/// files. @return `buffer`
const char* utc_timestamp(char (&buffer)[32]) noexcept;

}  // namespace smp::base
