// server/step/held_work.cpp: a wait that looks again and again.
#include "server/step/held_work.h"

#include <algorithm>

namespace smp::server {
namespace {

/// The time between two checks, while other fibers and polls run. Work that stands before in the
/// schedule begins by itself when it comes, so a longer time only delays the work that is held
/// back.
constexpr base::Nanoseconds kBetweenLooks = 100 * base::kMicrosecond;

}  // namespace

void HeldWork::hold(const StepState& step, schedule::Phase phase, int microbatch) {
  if (scheduler_.simulated() || step.progress.hold(phase, microbatch) == 0) return;
  const fiber::WaitReason reason{"what the schedule has before", "", -1, microbatch};
  const auto since = clock_.now();
  for (;;) {
    if (step.failed()) return;
    const auto share = step.progress.hold(phase, microbatch);
    if (share == 0) return;
    const auto waited = clock_.now() - since;
    const auto left = rule_.longest(phase, share) - waited;
    if (left <= 0) return rule_.waited_in_vain(waited);
    scheduler_.sleep_for(std::min(left, kBetweenLooks), reason);
  }
}

HeldWork::Measured::Measured(HeldWork& held, const StepState& step, ExecutionScope& scope)
    : held_(held),
      scope_(step.progress.has_list() ? &scope : nullptr),
      phase_(scope.identity().phase) {
  if (scope_ != nullptr) scope_->measure(&held_.clock_);
}

HeldWork::Measured::~Measured() {
  if (scope_ == nullptr) return;
  held_.computed(phase_, scope_->measured());
  scope_->measure(nullptr);
}

}  // namespace smp::server
