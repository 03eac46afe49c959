// server/stall_watch.cpp: counting the time without progress.
#include "server/stall_watch.h"

namespace smp::server {

void StallWatch::poll(bool waiting, bool progress) {
  if (progress || !waiting) {
    stalled_since_ = 0;
    reported_ = aborted_ = false;
    return;
  }
  // Reading the clock in every poll would cost as much as the poll.
  if (stalled_since_ != 0 && ++skipped_ % 64 != 0) return;
  const auto now = clock_.now();
  if (stalled_since_ == 0) stalled_since_ = now;
  const double seconds = static_cast<double>(now - stalled_since_) / base::kSecond;
  if (!reported_ && limits_.report_seconds > 0 && seconds >= limits_.report_seconds) {
    reported_ = true;
    report_(seconds);
  }
  if (!aborted_ && limits_.abort_seconds > 0 && seconds >= limits_.abort_seconds) {
    aborted_ = true;
    abort_(seconds);
  }
}

}  // namespace smp::server
