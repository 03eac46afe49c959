// server/recompute/ahead.cpp: the fiber that comes last.
#include "server/recompute/ahead.h"

#include <algorithm>
#include <limits>
#include <new>

#include "base/clock.h"

namespace smp::server {
namespace {

/// After every fiber that has something to do for others.
constexpr auto kLast = std::numeric_limits<fiber::Priority>::max();
/// Between two looks whether the rank is still kept free.
constexpr base::Nanoseconds kBetweenLooks = 100 * base::kMicrosecond;

}  // namespace

std::shared_ptr<RecomputeAhead> RecomputeAhead::of(int rank) {
  thread_local std::map<int, std::shared_ptr<RecomputeAhead>> ranks;
  auto& own = ranks[rank];
  if (own == nullptr) own = std::make_shared<RecomputeAhead>();
  return own;
}

void RecomputeAhead::begin_step(const Step& step) {
  step_ = step;
  slots_ = *base::current_fiber_slots();
  queue_ = schedule::AheadQueue(credit_, step.microbatches, step.enough);
  open_ = !vain_ && (credit_.one_call || credit_.bytes > 0);
  in_step_ = unasked_ = 0;
}

void RecomputeAhead::end_step(bool well) {
  static constexpr fiber::WaitReason kWait{"the end of a recomputation", "", -1, -1};
  open_ = false;
  while (works_) over_.rest(kWait);
  vain_ = vain_ || (well && 2 * (unasked_ + queue_.ahead()) > in_step_);
  for (const auto& [place, own] : calls_) {
    const auto call = own.lock();
    if (queue_.ended(place) && call != nullptr) call->let_go();
  }
  calls_.clear();
}

RecomputeAhead::Place RecomputeAhead::add(const std::shared_ptr<AheadCall>& call, int microbatch) {
  const Place place{microbatch, -++added_};
  if (!open_) return place;
  queue_.add(place, call->bytes_ahead());
  calls_.emplace(place, call);
  wake();
  return place;
}

void RecomputeAhead::began(const Place& place) {
  queue_.began(place);
  wake();
}

void RecomputeAhead::ended(const Place& place) {
  if (calls_.erase(place) == 0) return;
  if (queue_.ended(place)) ++unasked_;
  wake();
}

void RecomputeAhead::wake() {
  if (works_ || !is_due()) return;
  try {
    works_ = true;
    fiber::Scheduler::instance().spawn([this] { work(); }, slots_, step_.stack_bytes, kLast);
  } catch (const std::bad_alloc&) {  // backwards compute by themselves
    works_ = false;
  }
}

/// A fiber of its own.
void RecomputeAhead::work() {
  while (waits_until_idle()) compute_next();
  works_ = false;
  over_.signal();
}

/// Lets all others go first. @return false if nothing is due any more
bool RecomputeAhead::waits_until_idle() const {
  static constexpr fiber::WaitReason kFree{"the schedule, which keeps this rank free", "", -1, -1};
  auto& scheduler = fiber::Scheduler::instance();
  while (is_due()) {
    if (scheduler.yield_to_those_before(kLast)) continue;
    if (!scheduler.simulated() && scheduler.poll_all()) continue;
    if (!step_.is_kept_free || !step_.is_kept_free()) return true;
    scheduler.sleep_for(kBetweenLooks, kFree);
  }
  return false;
}

void RecomputeAhead::compute_next() {
  const auto place = *queue_.due();
  const auto call = calls_.at(place).lock();
  if (call == nullptr) return ended(place);
  queue_.take(place);
  ++computed_;
  ++in_step_;
  most_bytes_ = std::max(most_bytes_, queue_.held());
  call->compute_ahead();
}

}  // namespace smp::server
