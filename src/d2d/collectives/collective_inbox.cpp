// d2d/collectives/collective_inbox.cpp: see the header.
#include "d2d/collectives/collective_inbox.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/check.h"

namespace smp::d2d {
namespace {

const char* name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
    case CollectiveKind::kTensorAllGather:
      return "an all_gather";
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kTensorBroadcast:
      return "a broadcast";
    case CollectiveKind::kBarrier:
      return "a barrier";
    case CollectiveKind::kAllReduce:
      return "an all_reduce";
    case CollectiveKind::kReduceScatter:
      return "a reduce_scatter";
    case CollectiveKind::kAllToAll:
      return "an all_to_all";
    case CollectiveKind::kLeaving:
    case CollectiveKind::kEpochFailed:
      break;
  }
  return "an unknown collective";
}

}  // namespace

std::string purpose_of(const char* what, const char* call) {
  const std::string_view purpose(what), name(call);
  const bool same = purpose.empty() || name.ends_with(purpose);
  auto text = name.empty() ? std::string(purpose) : base::concat(name, same ? "" : ": ");
  if (!name.empty() && !same) text += purpose;
  return text;
}

std::string CollectiveCall::text() const {
  const std::string from = root >= 0            ? base::concat(" from rank ", root)
                           : root == kOnDevices ? " by the devices"
                                                : "";
  if (dtype < 0 && detail.starts_with("smp::")) return detail + from;
  if (root >= 0 && dtype < 0) return name_of(kind) + from;
  if (dtype < 0) return base::concat(name_of(kind), detail.empty() ? "" : " for ", detail);
  std::vector<std::int64_t> sizes(detail.size() / sizeof(std::int64_t));
  std::memcpy(sizes.data(), detail.data(), sizes.size() * sizeof(std::int64_t));
  return base::concat(name_of(kind), " of ", static_cast<c10::ScalarType>(dtype), ' ',
                      c10::IntArrayRef(sizes), from);
}

// ---- calls ----

CollectiveId CollectiveInbox::begin(const CollectiveLane& lane, const CollectiveCall& call) {
  return begin(lane, next_[lane], call);
}

CollectiveId CollectiveInbox::begin(const CollectiveLane& lane, std::uint64_t number,
                                    const CollectiveCall& call) {
  SMP_ASSERT(number >= next_[lane], "collective ", number, " of lane ", lane.lane, " after ",
             next_[lane] - 1);
  if (number > 0) leave_out(lane, number - 1);
  next_[lane] = number + 1;
  const CollectiveId id{lane, number};
  Round& round = rounds_[id];
  round.call = &call;
  for (const auto& [slot, message] : round.arrived) {
    if (message.call != call) round.odd = slot.second;
  }
  return id;
}

void CollectiveInbox::end(const CollectiveId& id) { rounds_.erase(id); }

std::uint64_t CollectiveInbox::next(const CollectiveLane& lane) const {
  const auto found = next_.find(lane);
  return found == next_.end() ? 0 : found->second;
}

void CollectiveInbox::leave_out(const CollectiveLane& lane, std::uint64_t number) {
  auto& next = next_[lane];
  if (number < next) return;
  auto left = rounds_.lower_bound({lane, next});
  while (left != rounds_.end() && left->first.lane == lane && left->first.number <= number) {
    left = rounds_.erase(left);
  }
  next = number + 1;
}

bool CollectiveInbox::has_come(const CollectiveId& id, CollectivePhase phase,
                               GlobalRank peer) const {
  return rounds_.at(id).arrived.count({phase, peer}) > 0;
}

bool CollectiveInbox::is_decided(const CollectiveId& id, CollectivePhase phase,
                                 GlobalRank peer) const {
  const auto round = rounds_.find(id);
  if (round != rounds_.end() && round->second.arrived.contains({phase, peer})) return true;
  return is_gone(peer) || failed_.contains(id.lane.epoch) || !aborted_.empty();
}

Payload CollectiveInbox::take(const CollectiveId& id, CollectivePhase phase, GlobalRank peer,
                              const CollectiveName& name) {
  Round& round = rounds_.at(id);
  round.awaited = {phase, peer};
  for (;;) {
    check_agreement(id, round, name);
    if (const auto found = round.arrived.find(round.awaited); found != round.arrived.end()) {
      return std::move(found->second.payload);
    }
    check_may_come(id, peer, name);
    check_no_other_call(id, peer, name);
    wait(round.waiting, name, peer);
  }
}

void CollectiveInbox::check_agreement(const CollectiveId& id, const Round& round,
                                      const CollectiveName& name) const {
  if (round.odd == GlobalRank()) return;
  const auto odd = std::find_if(round.arrived.begin(), round.arrived.end(),
                                [&](const auto& entry) { return entry.first.second == round.odd; });
  SMP_REQUIRE(false, "rank ", rank_, ": ", round.call->text(), ", but rank ", round.odd, " calls ",
              odd->second.call.text(), " at its place (call ", id.number, " of lane ", id.lane.lane,
              " of ", name.group,
              "); all members must make the same calls in the same order, with tensors of one "
              "shape and dtype.");
}

/// Returns the collective that `peer` is in and cannot leave before this rank joins it, if all that
/// it has sent so far is here; else nullptr. Only outside of steps (lane 0, epoch 0) is there one
/// call at a time.
const CollectiveCall* CollectiveInbox::other_call_of(GlobalRank peer) const {
  const auto announced = announced_.find(peer);
  const auto received = received_.find(peer);
  if (announced == announced_.end() || received == received_.end()) return nullptr;
  if (announced->second != static_cast<std::uint32_t>(received->second)) return nullptr;
  for (const auto& [id, round] : rounds_) {
    if (id.lane.lane != 0 || id.lane.epoch != 0 || round.call != nullptr) continue;
    for (const auto& [slot, message] : round.arrived) {
      if (slot.second == peer && message.call.waits_for_all()) return &message.call;
    }
  }
  return nullptr;
}

void CollectiveInbox::check_no_other_call(const CollectiveId& id, GlobalRank peer,
                                          const CollectiveName& name) const {
  const auto& own = *rounds_.at(id).call;
  const bool outside_of_steps = id.lane.epoch == 0 && (id.lane.lane == 0 || own.root >= 0);
  if (*name.call == '\0' || !outside_of_steps) return;
  const auto* const other = other_call_of(peer);
  SMP_REQUIRE(other == nullptr, "rank ", rank_, ": ", name.call, " of ", name.group,
              " waits for rank ", peer, ", but rank ", peer, " calls ", other->text(),
              ", which waits for this rank; all ranks of a group must make the same calls in the "
              "same order");
}

void CollectiveInbox::check_not_ended(const CollectiveId& id, const CollectiveName& name) const {
  const auto failed = failed_.find(id.lane.epoch);
  SMP_REQUIRE_AS(PeerLostError, failed == failed_.end(), "rank ", rank_, ": ", name.what, " of ",
                 name.group, ": rank ", failed->second.where, " failed: ", failed->second.why);
  SMP_REQUIRE_AS(PeerLostError, aborted_.empty(), "rank ", rank_, ": ", name.what, " of ",
                 name.group, ": ", aborted_);
}

void CollectiveInbox::check_may_come(const CollectiveId& id, GlobalRank peer,
                                     const CollectiveName& name) const {
  check_not_ended(id, name);
  if (!is_gone(peer)) return;
  throw PeerLostError(base::concat(
      "rank ", rank_, ": ", name.what, " of ", name.group, " waits for rank ", peer, ", but rank ",
      peer, ' ', left_.at(peer).why,
      *name.call == '\0' ? "" : base::concat("; every rank of the group must call ", name.call)));
}

void CollectiveInbox::await(const CollectiveId& id, Departure& departure,
                            const CollectiveName& name) {
  while (departure.in_flight > 0) {
    check_not_ended(id, name);
    wait(departure.on_left, name, GlobalRank());
  }
}

// Whoever knows `place` may signal, and wake_all().
void CollectiveInbox::wait(fiber::Event*& place, const CollectiveName& name, GlobalRank peer) {
  struct Registration {
    fiber::Event event;
    fiber::Event*& place;
    std::vector<fiber::Event*>& waiting;
    ~Registration() {
      place = nullptr;
      waiting.erase(std::find(waiting.begin(), waiting.end(), &event));
    }
  } registration{{}, place, waiting_};
  place = &registration.event;
  waiting_.push_back(&registration.event);
  const fiber::WaitReason reason{name.what, "", peer.value(), -1, name.group, name.call};
  registration.event.wait(reason);
}

// ---- arrivals ----

void CollectiveInbox::deliver(GlobalRank source, const CollectiveId& id, CollectivePhase phase,
                              CollectiveMessage&& message) {
  ++received_[source];
  announced_[source] = std::max(announced_[source], message.sent_before + 1);
  if (!is_over(id)) {
    Round& round = rounds_[id];
    if (round.call != nullptr && message.call != *round.call) round.odd = source;
    const Slot slot{phase, source};
    const bool wanted = slot == round.awaited || round.odd != GlobalRank();
    round.arrived.emplace(slot, std::move(message));
    if (wanted && round.waiting != nullptr) round.waiting->signal();
    if (round.watcher != nullptr) round.watcher->signal();
    if (round.call == nullptr && id.lane.lane == 0) wake_all();  // check_no_other_call()
  }
  if (is_gone(source)) wake_all();
}

// Its call failed here before all messages had come.
bool CollectiveInbox::is_over(const CollectiveId& id) const {
  if (id.lane.epoch != 0 && id.lane.epoch <= ended_epoch_) return true;
  const auto next = next_.find(id.lane);
  return next != next_.end() && id.number < next->second && rounds_.count(id) == 0;
}

void CollectiveInbox::peer_left(GlobalRank peer, std::uint64_t sent, const std::string& why) {
  left_[peer] = {sent, why};
  if (is_gone(peer)) wake_all();
}

bool CollectiveInbox::is_gone(GlobalRank peer) const {
  const auto left = left_.find(peer);
  if (left == left_.end()) return false;
  const auto received = received_.find(peer);
  return left->second.sent <= (received == received_.end() ? 0 : received->second);
}

void CollectiveInbox::abort(const std::string& why) {
  aborted_ = why;
  wake_all();
}

// ---- epochs ----

void CollectiveInbox::fail_epoch(std::uint64_t epoch, GlobalRank where, const std::string& why) {
  if (epoch <= ended_epoch_) return;
  failed_.emplace(epoch, EpochFailure{where, why});
  wake_all();
}

void CollectiveInbox::peer_failed_epoch(GlobalRank source, std::uint64_t epoch,
                                        const std::string& why) {
  ++announced_[source];
  ++received_[source];
  fail_epoch(epoch, source, why);
  if (is_gone(source)) wake_all();
}

void CollectiveInbox::end_epoch(std::uint64_t epoch) {
  ended_epoch_ = std::max(ended_epoch_, epoch);
  const auto is_past = [this](const CollectiveLane& lane) {
    return lane.epoch != 0 && lane.epoch <= ended_epoch_;
  };
  std::erase_if(next_, [&](const auto& entry) { return is_past(entry.first); });
  std::erase_if(rounds_, [&](const auto& entry) {  // those that run end by themselves
    return is_past(entry.first.lane) && entry.second.call == nullptr;
  });
  failed_.erase(failed_.begin(), failed_.upper_bound(ended_epoch_));
}

void CollectiveInbox::wake_all() {
  for (fiber::Event* event : waiting_) event->signal();
}

}  // namespace smp::d2d
