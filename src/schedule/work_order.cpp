// schedule/work_order.cpp: places in the order of beginnings.
#include "schedule/work_order.h"

namespace smp::schedule {

void WorkOrder::note(Phase phase, int microbatch) noexcept {
  if (phase != Phase::kForward && phase != Phase::kBackward) return;
  if (microbatch < 0 || microbatch >= microbatches()) return;
  auto& place = places_[index(phase, microbatch)];
  if (place < 0) place = next_++;
}

int WorkOrder::place(Phase phase, int microbatch) const noexcept {
  const bool counts = phase == Phase::kForward || phase == Phase::kBackward;
  if (!counts || microbatch < 0 || microbatch >= microbatches()) return -1;
  return places_[index(phase, microbatch)];
}

bool WorkOrder::has_backward() const noexcept {
  for (int microbatch = 0; microbatch < microbatches(); ++microbatch) {
    if (place(Phase::kBackward, microbatch) >= 0) return true;
  }
  return false;
}

std::int64_t RecordedOrder::priority(Phase phase, int microbatch,
                                     const Progress& progress) const noexcept {
  const auto by_rule = base_.priority(phase, microbatch, progress);
  if (order_.microbatches() != progress.microbatches) return by_rule;
  const int place = order_.place(phase, microbatch);
  return place >= 0 ? place : 2 * std::int64_t{progress.microbatches} + by_rule;
}

}  // namespace smp::schedule
