// server/stall_watch.h: gives every wait a deadline: first a report, then an end (§4.14).
#pragma once

#include <functional>
#include <string>

#include "base/clock.h"

namespace smp::server {

/// Watches for silence: no message, nothing executed. Threads: the rank's, called in every poll.
class StallWatch {
 public:
  struct Limits {
    double report_seconds;  ///< 0: never
    double abort_seconds;   ///< 0: never
  };
  StallWatch(const base::Clock& clock, Limits limits, std::function<void(double seconds)> report,
             std::function<void(double seconds)> abort)
      : clock_(clock), limits_(limits), report_(std::move(report)), abort_(std::move(abort)) {}

  /// `waiting`: some fiber of this rank waits for another rank; `progress`: something happened.
  void poll(bool waiting, bool progress);

 private:
  const base::Clock& clock_;
  Limits limits_;
  std::function<void(double)> report_;
  std::function<void(double)> abort_;
  base::Nanoseconds silent_since_ = 0;
  bool reported_ = false;
  bool aborted_ = false;
  int skipped_ = 0;
};

}  // namespace smp::server
