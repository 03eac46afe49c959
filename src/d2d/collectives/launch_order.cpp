// d2d/collectives/launch_order.cpp: see the header.
#include "d2d/collectives/launch_order.h"

#include "base/check.h"
#include "fiber/scheduler.h"

namespace smp::d2d {

void LaunchOrder::announce(const CollectiveId& id, std::shared_ptr<AnnouncedCall> call) {
  const bool is_new = announced_.emplace(id, std::move(call)).second;
  SMP_ASSERT(is_new, "call ", id.number, " of lane ", id.lane.lane, " was announced before");
}

std::uint64_t LaunchOrder::give_turn(const CollectiveId& id) {
  set_turn(id, given_);
  return given_++;
}

void LaunchOrder::set_turn(const CollectiveId& id, std::uint64_t turn) {
  const auto found = announced_.find(id);
  SMP_ASSERT(found != announced_.end(), "turn ", turn, " is that of call ", id.number, " of lane ",
             id.lane.lane, ", which was not announced here");
  const bool is_new = turns_.put(turn, {id, std::move(found->second)});
  announced_.erase(found);
  SMP_ASSERT(is_new, "turn ", turn, " came twice, the next one is ", turns_.next());
}

bool LaunchOrder::launch() {
  bool moved = false;
  while (turns_.ready() && turns_.front().call->call->launch()) {
    finish(*turns_.take());
    moved = true;
  }
  return moved;
}

void LaunchOrder::finish(const Turn& turn) {
  auto& done = *turn.call;
  done.launch.in_flight = 0;
  if (done.launch.on_left != nullptr) done.launch.on_left->signal();
  if (!done.awaited) done.call->join();  // or its memory would be used again too early
  forget_given_up(turn.id);
}

/// Forgets calls that get no turn any more: the leader gave them none in epochs and in calls of a
/// lane that it has ended before.
void LaunchOrder::forget_given_up(const CollectiveId& before) {
  std::erase_if(announced_, [&](const auto& entry) {
    const auto& [lane, number] = entry.first;
    const bool past = lane.epoch == 0 ? lane == before.lane && number < before.number
                                      : lane.epoch < before.lane.epoch;
    return past && !entry.second->awaited;
  });
}

}  // namespace smp::d2d
