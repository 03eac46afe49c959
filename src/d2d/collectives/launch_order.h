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

/// A call of this rank that the other members have been told of.
struct AnnouncedCall {
  explicit AnnouncedCall(std::unique_ptr<DeviceCall> device_call) : call(std::move(device_call)) {}

  std::unique_ptr<DeviceCall> call;
  Departure launch{1, nullptr};  ///< left once it is launched
  bool awaited = true;           ///< by its fiber
};

/// Orders the launches of a group, since lanes have no common order. A call gets its turn once all
/// members have announced it, so that it never waits for a rank that does not come. Whoever has
/// announced a call launches it when its turn comes, as the others do, even if its fiber has ended
/// by an error meanwhile.
class LaunchOrder {
 public:
  void announce(const CollectiveId& id, std::shared_ptr<AnnouncedCall> call);
  /// Withdraws a call, which will get no turn.
  void withdraw(const CollectiveId& id) { announced_.erase(id); }
  /// Gives the next turn to `id`, which is announced. Only on the leader. @return the number of the
  /// turn
  std::uint64_t give_turn(const CollectiveId& id);
  /// Notes a turn that the leader gave. Only on the others. Turns may come in any order.
  void set_turn(const CollectiveId& id, std::uint64_t turn);
  /// Launches the calls whose turn it is, and wakes their fibers. Returns true if there were any.
  /// @throws as DeviceCall::launch()
  bool launch();
  /// The number of calls that are announced and have no turn.
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
