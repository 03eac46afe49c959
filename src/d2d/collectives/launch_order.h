// d2d/collectives/launch_order.h: calls of a group's devices, launched by the turns that its leader
// gives. Threads: the rank's thread only; nothing here suspends.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "d2d/channel/departures.h"
#include "d2d/collectives/collective_inbox.h"
#include "d2d/collectives/device_collectives.h"
#include "d2d/wire/in_order.h"

namespace smp::d2d {

/// A call of this rank, which has told the others that it is there.
struct AnnouncedCall {
  explicit AnnouncedCall(std::unique_ptr<DeviceCall> device_call) : call(std::move(device_call)) {}

  std::unique_ptr<DeviceCall> call;
  Departure launch{1, nullptr};  ///< left once it is launched
  bool awaited = true;           ///< by its fiber
};

/// Lanes have no common order, launches of a group must have one. A call gets its turn once all
/// members have announced it, so that it never waits for a rank that does not come; and whoever has
/// announced a call launches it when its turn comes, even if its fiber has meanwhile ended by an
/// error: the others do.
class LaunchOrder {
 public:
  void announce(const CollectiveId& id, std::shared_ptr<AnnouncedCall> call);
  /// The call will get no turn.
  void withdraw(const CollectiveId& id) { announced_.erase(id); }
  /// On the leader: the next turn is that of `id`, which is announced. @return its number
  std::uint64_t give_turn(const CollectiveId& id);
  /// On the others: what the leader gave. Turns may come in any order.
  void set_turn(const CollectiveId& id, std::uint64_t turn);
  /// Launches those whose turn it is, and wakes their fibers. Whether there were any.
  /// @throws as DeviceCall::launch()
  bool launch();
  /// Announced, without a turn.
  std::size_t announced() const noexcept { return announced_.size(); }

 private:
  struct Turn {
    CollectiveId id;
    std::shared_ptr<AnnouncedCall> call;
  };
  void finish(const Turn& turn);
  void forget_given_up(const CollectiveId& before);

  std::map<CollectiveId, std::shared_ptr<AnnouncedCall>> announced_;
  InOrder<Turn> turns_;
  std::uint64_t given_ = 0;
};

}  // namespace smp::d2d
