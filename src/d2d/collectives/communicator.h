// d2d/collectives/communicator.h: collectives among any ranks of a channel, that suspend the
// calling fiber. Paper: §6. Threads: the rank's thread only; call collectives from fibers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "d2d/channel/channel.h"
#include "d2d/collectives/collective_inbox.h"
#include "d2d/collectives/device_collectives.h"
#include "d2d/wire/members.h"

namespace smp::d2d {

class Collective;
class Communicators;
class DeviceGroup;

/// A group of ranks, numbered by their position in it, and a lane. All members call the same
/// collectives of a lane in the same order; lanes of a group, and groups, are independent of each
/// other, so that collectives need no order beyond that. A handle: cheap to copy; its Communicators
/// outlive it.
///
/// Every collective throws UsageError on ranks that see that members disagree (another call, root,
/// shape or dtype), and PeerLostError if a member left or the waits were ended.
class Communicator {
 public:
  /// This rank's position.
  int rank() const noexcept;
  int size() const noexcept { return members_->size(); }
  const Members& members() const noexcept { return *members_; }
  /// Returns an independent sequence of collectives of the same group; all members use the same
  /// number. The group itself is its lane 0.
  Communicator lane(std::uint64_t number) const;
  /// Returns such a lane that exists until Communicators::end_epoch(epoch); `epoch` is at least 1.
  Communicator lane(std::uint64_t number, std::uint64_t epoch) const;
  /// Promises, in a lane of SumAside, that this member begins no collective up to `number` any
  /// more; messages of others for them are dropped, now and when they come.
  void leave_out(std::uint64_t number) const;
  /// Returns the same group and lane, whose collectives of tensors are called `what` in messages
  /// and reports; the text outlives the calls.
  Communicator named(const char* what) const;
  /// Returns the communicator of some of the channel's ranks, this one among them; only they call
  /// it.
  /// @throws as Communicators::group
  Communicator among(Members members) const;

  /// Returns the payloads of all members, in order of members, on every member. `what`, the same on
  /// all members, is for messages. Tensors leave as in Channel::send: do not change them soon.
  /// Messages: size - 1 sent by each.
  std::vector<Payload> all_gather(Payload own, const char* what) const;
  /// Returns `root`'s payload on every member. Messages: size - 1 sent by the root.
  Payload broadcast(Payload own, GlobalRank root) const;
  /// Returns when all members have called it. Messages: size - 1 sent by each.
  void barrier() const;

  // Words that not everybody need say. In a lane of their own, on which nothing else is called:
  // members number them themselves, upwards from `number`, and leave numbers out.

  /// Sends `word` to `hearers`, who are members, whether they ask for it or not. Does not wait.
  void tell(std::uint64_t number, const Payload& word, const std::vector<GlobalRank>& hearers,
            const char* what) const;
  /// Returns the word of `teller` of this number; suspends until it comes. If a number is taken
  /// both go on with the next one.
  Payload hear(std::uint64_t number, GlobalRank teller, const char* what) const;
  /// True if hear() would not suspend now: the word is here, or none can come.
  bool would_hear(std::uint64_t number, GlobalRank teller) const;
  /// The number that the next collective of the lane has here.
  std::uint64_t next_number() const;

  // On tensors. Results are new tensors without history; `tensor` may be changed once they are
  // there. Sums are taken in order of members at one place for each element, in the tensors' dtype,
  // so that every member gets the same bits, whatever the timing. In groups of which
  // Communicators::use_devices() has connected the devices these do it, by the first four of these
  // calls and on types of elements that they know: in an order of their own, and results are there
  // once what is on the current stream is done.

  /// Returns the sum of all members' tensors. Each sends 2 (n-1)/n of the tensor's bytes in 2 (n-1)
  /// messages; up to kInlineBytes (n-1) times the tensor in n-1 messages.
  at::Tensor all_reduce(const at::Tensor& tensor) const;
  /// Returns this rank's part of the sum of all members' tensors, which is cut along the first
  /// dimension by position. Each sends (n-1)/n of the tensor's bytes in n-1 messages.
  /// @throws UsageError  the first dimension cannot be divided by size().
  at::Tensor reduce_scatter(const at::Tensor& tensor) const;
  /// Returns all members' tensors, of the same shape, one after another along the first dimension.
  /// Each sends n-1 times its tensor in n-1 messages.
  at::Tensor all_gather(const at::Tensor& tensor) const;
  /// Cuts the tensor along the first dimension and sends part i to the member at position i.
  /// Returns the parts that come, one from each, one after another along the first dimension. Each
  /// sends (n-1)/n of the tensor's bytes in n-1 messages.
  /// @throws UsageError  the first dimension cannot be divided by size().
  at::Tensor all_to_all(const at::Tensor& tensor) const;
  /// Returns the tensor of `root` on every member: itself there, a new one elsewhere. Members agree
  /// on `sizes` and `dtype`; `own` is read at the root only. The root sends it size() - 1 times,
  /// and returns when it has left.
  at::Tensor broadcast_tensor(const at::Tensor& own, at::IntArrayRef sizes, c10::ScalarType dtype,
                              GlobalRank root) const;

 private:
  friend class Collective;
  friend class Communicators;
  friend class SumAside;
  friend class SumInPlace;
  Communicator(Communicators& owner, std::shared_ptr<const Members> members, CollectiveLane lane)
      : owner_(&owner), members_(std::move(members)), lane_(lane) {}
  const char* name_or(const char* usual) const noexcept { return name_ ? name_ : usual; }
  /// Returns the call of the program whose part collectives of this lane are; "" within steps.
  const char* call_of_program() const noexcept;
  /// Returns `call` with that name in its detail, if it has no tensor: others see it there.
  CollectiveCall as_part_of_program(CollectiveCall call) const;

  template <class Action>
  void for_each_other(Action&& action) const;
  at::Tensor sum_everywhere(const at::Tensor& tensor, const char* what) const;
  DeviceGroup* devices_for(CollectiveKind kind, const at::Tensor& tensor) const noexcept;
  at::Tensor run_on(DeviceGroup& devices, CollectiveKind kind, const at::Tensor& tensor,
                    at::IntArrayRef result_sizes, const char* what) const;

  Communicators* owner_;
  std::shared_ptr<const Members> members_;
  CollectiveLane lane_;
  const char* name_ = nullptr;
};

/// The communicators of a channel. It takes the messages that arrive at the port kCollectives.
class Communicators {
 public:
  explicit Communicators(Channel& channel);
  ~Communicators();
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  GlobalRank rank() const noexcept { return channel_.rank(); }
  /// Returns the communicator of `members`, numbered in that order. Nothing is sent.
  /// @throws UsageError  a member is not in the channel or named twice, or this rank is none.
  Communicator group(Members members);
  /// Returns the communicator of all ranks of the channel.
  Communicator all() { return group(channel_.members()); }

  /// Connects the devices of a group, for its collectives from now on, in all lanes. All members
  /// call it in the same place of the group's lane 0, and none uses another lane before it returns.
  /// Suspends the fiber.
  /// @param make, device  for this rank's end of the connection
  /// @param required      if not, a group whose devices cannot be connected goes on by messages
  /// @return why the group goes on by messages; empty: its devices are connected
  /// @throws UnsupportedError  they cannot be connected, but are required; on all members.
  std::string use_devices(const Communicator& group, const MakeDeviceCollectives& make,
                          c10::Device device, bool required);

  /// Tells every other rank of the channel how many messages it was sent, and that no more will
  /// come: "rank 2 left after step 41" (`why`, without the rank). There peer_left() follows.
  void announce_leaving(std::string_view why);
  /// Tells that `peer` has sent `sent` messages and will send no more. Since messages have no
  /// order, some may still be on their way; when they are here, waiting and later calls with it
  /// throw PeerLostError.
  void peer_left(GlobalRank peer, std::uint64_t sent, const std::string& why) {
    inbox_.peer_left(peer, sent, why);
  }
  /// The number of messages sent to `peer` so far.
  std::uint64_t sent_to(GlobalRank peer) { return sent(peer); }
  /// Ends every wait, and later ones, with PeerLostError(`why`), and the collectives of devices.
  void abort(const std::string& why);
  /// Sets the call of the program that this rank is in, "smp::barrier", and returns the one before;
  /// nullptr: none. All members of a group make the same while they are in a collective outside of
  /// steps; texts name it. The text outlives the collectives.
  const char* exchange_call(const char* name) noexcept { return std::exchange(call_, name); }

  // Epochs are numbered by the caller, in the order in which they end; each rank ends its own.

  /// Declares that this rank will not finish the collectives of `epoch`: waits in its lanes, now
  /// and later, throw PeerLostError with `why`, here and on `others`, which are told. Safe in a
  /// poll.
  void fail_epoch(std::uint64_t epoch, const Members& others, const std::string& why);
  /// Forgets the lanes of epochs up to this one. No fiber may be in a collective of theirs.
  void end_epoch(std::uint64_t epoch) { inbox_.end_epoch(epoch); }
  /// The number of lanes in which something was called here and that are not forgotten.
  std::size_t lanes() const noexcept { return inbox_.lanes(); }
  /// The number of collectives that began here, or of which messages came, and that are not over.
  std::size_t open_collectives() const noexcept { return inbox_.open(); }

 private:
  friend class Collective;
  friend class Communicator;

  std::uint64_t& sent(GlobalRank peer);
  template <class Tell>
  void tell_each(const Members& members, Tell&& tell) const;
  void send(GlobalRank peer, std::span<const std::byte> header, std::string_view bytes,
            c10::ArrayRef<at::Tensor> tensors, std::shared_ptr<Departure> departure);
  void receive(GlobalRank source, ArrivedFrame&& frame);

  Channel& channel_;
  CollectiveInbox inbox_;
  std::vector<std::uint64_t> sent_;  // messages so far, by position in the channel
  const char* call_ = nullptr;
  std::map<std::uint64_t, std::unique_ptr<DeviceGroup>> devices_;  // by group
};

}  // namespace smp::d2d
