// schedule/hold_rule.cpp: what is usual, and what may be lost.
#include "schedule/hold_rule.h"

namespace smp::schedule {
namespace {

/// The divisor of the time computed that gives the time which waits in vain may cost.
constexpr base::Nanoseconds kLost = 50;

/// The weight of the newest time in the moving average.
constexpr double kNewest = 0.1;

}  // namespace

base::Nanoseconds HoldRule::longest(Phase phase, double share) const noexcept {
  const auto left = computed_ / kLost - in_vain_;
  if (share <= 0 || left <= 0) return 0;
  return static_cast<base::Nanoseconds>(share * usual_[static_cast<std::size_t>(phase)]);
}

void HoldRule::computed(Phase phase, base::Nanoseconds time) noexcept {
  auto& usual = usual_[static_cast<std::size_t>(phase)];
  const auto newest = static_cast<double>(time);
  usual = usual == 0 ? newest : (1 - kNewest) * usual + kNewest * newest;
  computed_ += time;
}

}  // namespace smp::schedule
