// d2d/collectives/device_group.h: the collectives of a communicator that its members' devices do.
// Threads: the rank's thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "d2d/collectives/communicator.h"
#include "d2d/collectives/device_collectives.h"
#include "d2d/collectives/launch_order.h"

namespace smp::d2d {

class Collective;

/// A group whose devices are connected. Its member at position 0 leads: when a fiber comes to a
/// collective, all members are told; once the leader has heard of it from all, it gives the
/// collective the next turn and tells the others, who launch by turns. Messages: size - 1 sent by
/// each, and as many again by the leader. What members call is compared, and waits for members that
/// fail or leave end, as in collectives by messages.
class DeviceGroup {
 public:
  using OnFailure = std::function<void(const std::string& why)>;
  /// @param devices     connected
  /// @param on_failure  called in a poll: the devices cannot go on, and neither can this rank
  DeviceGroup(const Communicator& ranks, std::unique_ptr<DeviceCollectives> devices,
              OnFailure on_failure);
  ~DeviceGroup();
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  /// True if the devices do this call. The same on all members for the same call.
  bool takes(CollectiveKind kind, const at::Tensor& tensor) const noexcept;
  /// Runs a call on the devices. Suspends the fiber until it is launched.
  /// @param ranks  the group, or a lane of it
  /// @return the result of these sizes, complete once what is on the current stream now is done
  /// @throws as Communicator
  at::Tensor run(const Communicator& ranks, const CollectiveCall& call, const char* what,
                 const at::Tensor& tensor, at::IntArrayRef sizes);
  /// Notes that the leader has given the call a turn. Called in a poll.
  void take_turn(const CollectiveId& id, std::string_view message);
  /// Ends the calls of the devices; later calls throw PeerLostError(`why`). Safe in a poll.
  void abort(const std::string& why) noexcept;
  /// Notes that a member has left: calls that it has launched end soon, or never. Safe in a poll.
  void member_left(const std::string& why);
  bool has(GlobalRank rank) const { return members_.contain(rank); }

 private:
  class Announcement;

  void agree(const Communicator& ranks, Collective& collective);
  void require_working(const char* what) const;
  bool launch() noexcept;
  bool poll() noexcept;
  void look_at_devices() noexcept;
  void fail(const char* error) noexcept;

  const Members members_;
  const GlobalRank rank_;
  const OnFailure on_failure_;
  std::unique_ptr<DeviceCollectives> devices_;
  LaunchOrder order_;  // its calls are of `devices_`
  std::string failure_;
  bool reported_ = false;
  base::Nanoseconds looked_ = 0;
  base::Nanoseconds deserted_ = 0;  // when a member left; 0: all are there
  std::string why_left_;
  std::shared_ptr<void> poll_;
};

}  // namespace smp::d2d
