// server/recompute/ahead.cpp: the fiber that comes last.
#include "server/recompute/ahead.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

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
  queue_ = schedule::AheadQueue(credit_, turn_of(step.order.last), step.enough);
  open_ = !vain_.contains(kind_) && (credit_.one_call || credit_.bytes > 0);
  in_step_ = unasked_ = 0;
}

void RecomputeAhead::end_step(bool well) {
  static constexpr fiber::WaitReason kWait{"the end of a recomputation", "", -1, -1};
  const bool was_open = std::exchange(open_, false);
  while (works_) over_.rest(kWait);
  if (was_open && well && 2 * (unasked_ + queue_.ahead()) > in_step_) vain_.insert(kind_);
  for (const auto& [place, own] : calls_) {
    const auto call = own.call.lock();
    if (queue_.ended(place) && call != nullptr) call->let_go();
  }
  calls_.clear();
}

int RecomputeAhead::turn_of(int microbatch) const noexcept {
  const auto& turns = step_.order.turns;
  const auto place = static_cast<std::size_t>(microbatch);
  return place < turns.size() ? turns[place] : microbatch;
}

bool RecomputeAhead::is_due() const {
  const bool failed = step_.has_failed && step_.has_failed();
  return open_ && !failed && queue_.due().has_value();
}

RecomputeAhead::Place RecomputeAhead::add(const std::shared_ptr<AheadCall>& call, int microbatch,
                                          bool of_body) {
  if (!open_) return {0, -++added_};
  const Place place{turn_of(microbatch), -++added_};
  queue_.add(place, call->bytes_ahead());
  calls_.emplace(place, Known{call, of_body});
  wake();
  return place;
}

void RecomputeAhead::body_ended(int microbatch) noexcept {
  if (!open_) return;
  const int turn = turn_of(microbatch);
  auto next = calls_.lower_bound({turn, std::numeric_limits<std::int64_t>::min()});
  while (next != calls_.end() && next->first.turn == turn) {
    const auto own = next++;
    if (!own->second.of_body) continue;
    const auto call = own->second.call.lock();
    const bool unasked = queue_.ended(own->first);
    calls_.erase(own);
    if (!unasked) continue;
    ++unasked_;
    if (call != nullptr) call->let_go();
  }
  wake();
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

/// LibTorch's own engine may free a call on a thread of a device.
void RecomputeAhead::wake() {
  if (works_ || !fiber::Scheduler::installed() || !is_due()) return;
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
  const auto call = calls_.at(place).call.lock();
  if (call == nullptr) return ended(place);
  queue_.take(place);
  ++computed_;
  ++in_step_;
  most_bytes_ = std::max(most_bytes_, queue_.held());
  call->compute_ahead();
}

}  // namespace smp::server
