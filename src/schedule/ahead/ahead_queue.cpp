// schedule/ahead/ahead_queue.cpp: calls move from those that are coming to those that are ahead,
// and to those whose backward has begun.
#include "schedule/ahead/ahead_queue.h"

#include <algorithm>

namespace smp::schedule {

int enough_alive(const Schedule& schedule, int pp_rank, int pp_size, int microbatches) noexcept {
  const int most = schedule.most_alive(pp_rank, microbatches);
  const bool as_it_comes = schedule.list(pp_rank) == nullptr && most < microbatches;
  return as_it_comes ? std::min(most, pp_size - pp_rank) : most;
}

void AheadQueue::add(const AheadPlace& place, std::int64_t bytes) {
  coming_.emplace(place, bytes);
  ++pending_[place.microbatch];
}

std::optional<AheadPlace> AheadQueue::due() const {
  if (coming_.empty()) return std::nullopt;
  const auto& [place, bytes] = *coming_.begin();
  const bool alone = credit_.one_call && ahead_.empty() && begun_.empty();
  if (!alone && held_ + bytes > credit_.bytes) return std::nullopt;
  const bool last_has_come = pending_.rbegin()->first == last_;
  const auto alive = static_cast<std::int64_t>(pending_.size());
  if (!last_has_come && alive < enough_) return std::nullopt;
  return place;
}

bool AheadQueue::move(const AheadPlace& place, Calls& from, Calls& to) {
  auto call = from.extract(place);
  if (!call) return false;
  if (&from == &coming_) held_ += call.mapped();
  to.insert(std::move(call));
  return true;
}

void AheadQueue::began(const AheadPlace& place) {
  if (!move(place, ahead_, begun_)) move(place, coming_, begun_);
}

bool AheadQueue::ended(const AheadPlace& place) {
  const bool unasked = ahead_.contains(place);
  for (auto* const calls : {&coming_, &ahead_, &begun_}) {
    const auto call = calls->extract(place);
    if (!call) continue;
    if (calls != &coming_) held_ -= call.mapped();
    const auto pending = pending_.find(place.microbatch);
    if (--pending->second == 0) pending_.erase(pending);
  }
  return unasked;
}

}  // namespace smp::schedule
