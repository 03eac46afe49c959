// schedule/ahead/ahead_queue.cpp: calls move from those that are coming to those that are ahead,
// and to those whose backward has begun.
#include "schedule/ahead/ahead_queue.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "schedule/rank_list.h"

namespace smp::schedule {

int enough_alive(const Schedule& schedule, int pp_rank, int pp_size, int microbatches) noexcept {
  const int most = schedule.most_alive(pp_rank, microbatches);
  const bool as_it_comes = schedule.list(pp_rank) == nullptr && most < microbatches;
  return as_it_comes ? std::min(most, pp_size - pp_rank) : most;
}

AheadOrder order_of(const Schedule& schedule, int pp_rank, int microbatches) {
  std::vector<int> order(static_cast<std::size_t>(microbatches));
  std::iota(order.begin(), order.end(), 0);
  AheadOrder made{order, microbatches - 1};
  const auto* const list = schedule.list(pp_rank);
  if (list == nullptr) return made;
  const auto sort_by = [&](Phase phase) {
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return list->place(phase, a) < list->place(phase, b); });
  };
  sort_by(Phase::kForward);
  made.last = order.back();
  sort_by(Phase::kBackward);
  for (int turn = 0; turn < microbatches; ++turn) {
    made.turns[static_cast<std::size_t>(order[static_cast<std::size_t>(turn)])] = turn;
  }
  return made;
}

void AheadQueue::add(const AheadPlace& place, std::int64_t bytes) {
  coming_.emplace(place, bytes);
  ++pending_[place.turn];
  last_has_come_ = last_has_come_ || place.turn == last_;
}

std::optional<AheadPlace> AheadQueue::due() const {
  if (coming_.empty()) return std::nullopt;
  const auto& [place, bytes] = *coming_.begin();
  const bool alone = credit_.one_call && ahead_.empty() && begun_.empty();
  if (!alone && held_ + bytes > credit_.bytes) return std::nullopt;
  if (waits_for_one_before(place.turn)) return std::nullopt;
  const auto alive = static_cast<std::int64_t>(pending_.size());
  if (!last_has_come_ && alive < enough_) return std::nullopt;
  return place;
}

/// What a backward has passed over is not waited for.
bool AheadQueue::waits_for_one_before(int turn) const {
  const auto first = ahead_.lower_bound({begun_turn_, std::numeric_limits<std::int64_t>::min()});
  return first != ahead_.end() && first->first.turn < turn;
}

bool AheadQueue::move(const AheadPlace& place, Calls& from, Calls& to) {
  auto call = from.extract(place);
  if (!call) return false;
  if (&from == &coming_) held_ += call.mapped();
  to.insert(std::move(call));
  return true;
}

void AheadQueue::began(const AheadPlace& place) {
  begun_turn_ = std::max(begun_turn_, place.turn);
  if (!move(place, ahead_, begun_)) move(place, coming_, begun_);
}

bool AheadQueue::ended(const AheadPlace& place) {
  const bool unasked = ahead_.contains(place);
  for (auto* const calls : {&coming_, &ahead_, &begun_}) {
    const auto call = calls->extract(place);
    if (!call) continue;
    if (calls != &coming_) held_ -= call.mapped();
    const auto pending = pending_.find(place.turn);
    if (--pending->second == 0) pending_.erase(pending);
  }
  return unasked;
}

}  // namespace smp::schedule
