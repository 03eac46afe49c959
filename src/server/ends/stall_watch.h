// server/ends/stall_watch.h: gives every wait a deadline: first a report, then an end
// (docs/design.md, Waits without an end).
#pragma once

#include <functional>
#include <string>

#include "base/clock.h"

namespace smp::server {

/// Watches for a stall: something waits, no message moves, no task starts. Counts real time, in
/// simulated runs too. It is asked in polls only, so a rank inside a long operator says nothing.
/// Threads: the rank's; what it calls runs in a poll and must not suspend.
class StallWatch {
 public:
  struct Limits {
    double report_seconds;  ///< 0: never
    double abort_seconds;   ///< 0: never
  };
  /// The functions that it calls, with the seconds of the stall.
  struct Calls {
    std::function<void(double seconds)> report;
    std::function<void(double seconds)> prepare;  ///< shortly before the end: ask once more
    std::function<bool(double seconds)> abort;    ///< again and again, until it returns true
    std::function<void()> check;                  ///< again and again, while the stall lasts
  };
  StallWatch(const base::Clock& clock, Limits limits, Calls calls)
      : clock_(clock), limits_(limits), calls_(std::move(calls)) {}

  /// `waiting`: some fiber of the thread waits; `progress`: a message moved, or a task started.
  void poll(bool waiting, bool progress);

 private:
  double prepare_seconds() const noexcept;

  const base::Clock& clock_;
  Limits limits_;
  Calls calls_;
  base::Nanoseconds stalled_since_ = 0;
  bool reported_ = false;
  bool prepared_ = false;
  bool aborted_ = false;
  int skipped_ = 0;
};

}  // namespace smp::server
