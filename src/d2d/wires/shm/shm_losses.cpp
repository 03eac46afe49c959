// d2d/wires/shm/shm_losses.cpp: see the header.
#include "d2d/wires/shm/shm_losses.h"

namespace smp::d2d {

ShmLosses::ShmLosses(const std::vector<HostShmSegment>& segments, int own,
                     const std::vector<std::int64_t>& processes, base::Doorbell& doorbell,
                     base::Nanoseconds patience)
    : segments_(segments),
      own_(static_cast<std::size_t>(own)),
      patience_(patience),
      ended_(segments.size()),
      watch_(processes, [this, &doorbell](std::size_t position) {
        ended_[position] = true;
        any_ended_ = true;
        doorbell.ring();
      }) {}

bool ShmLosses::is_lost(std::size_t position) const noexcept {
  return position != own_ && ended_[position].load(std::memory_order_acquire) &&
         segments_[position].left().load(std::memory_order_acquire) == 0;
}

bool ShmLosses::any() const noexcept {
  if (!any_ended()) return false;
  for (std::size_t i = 0; i < ended_.size(); ++i) {
    if (is_lost(i)) return true;
  }
  return false;
}

bool ShmLosses::any_for_long() {
  if (!any()) return false;
  const auto now = base::SteadyClock().now();
  if (!since_) since_ = now;
  return now - *since_ >= patience_;
}

}  // namespace smp::d2d
