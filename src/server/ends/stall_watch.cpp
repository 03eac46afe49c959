// server/ends/stall_watch.cpp: counting the time without progress.
#include "server/ends/stall_watch.h"

#include <algorithm>
#include <utility>

namespace smp::server {
namespace {

constexpr double kSecondsToCheck = 1;

}  // namespace

void StallWatch::poll(bool waiting, bool progress) {
  if (progress || !waiting) {
    stalled_since_ = 0;
    reported_ = prepared_ = aborted_ = false;
    return;
  }
  // Reading the clock in every poll would cost as much as the poll.
  if (stalled_since_ != 0 && ++skipped_ % 64 != 0) return;
  const auto now = clock_.now();
  if (stalled_since_ == 0) stalled_since_ = now;
  const double seconds = static_cast<double>(now - stalled_since_) / base::kSecond;
  if (seconds >= kSecondsToCheck) calls_.check();
  const bool due = limits_.report_seconds > 0 && seconds >= limits_.report_seconds;
  if (due && !std::exchange(reported_, true)) calls_.report(seconds);
  if (limits_.abort_seconds <= 0) return;
  if (seconds >= prepare_seconds() && !std::exchange(prepared_, true)) calls_.prepare(seconds);
  if (!aborted_ && seconds >= limits_.abort_seconds) aborted_ = calls_.abort(seconds);
}

/// Returns the seconds of stall after which the others are asked once more, up to 2 s before the
/// end: answers take up to a second.
double StallWatch::prepare_seconds() const noexcept {
  return limits_.abort_seconds - std::min(2.0, limits_.abort_seconds / 2);
}

}  // namespace smp::server
