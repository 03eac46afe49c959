// d2d/collectives/collective_inbox.h: messages of collectives that arrived, the fibers that wait
// for them, and who left. Threads: the rank's thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "d2d/channel/channel.h"
#include "fiber/scheduler.h"
#include "smp/rank.h"

namespace smp::d2d {

/// The bytes and tensors that a collective moves.
struct Payload {
  std::string bytes;
  std::vector<at::Tensor> tensors;
};

enum class CollectiveKind : std::uint8_t {
  kAllGather,
  kBroadcast,
  kBarrier,
  kAllReduce,
  kReduceScatter,
  kTensorAllGather,
  kTensorBroadcast,
  kLeaving,  ///< no collective: the sender's last message; `number` counts the messages before
  kAllToAll,
  kEpochFailed,  ///< no collective: those of an epoch will not be finished by the sender
};

/// A sequence of collectives.
struct CollectiveLane {
  std::uint64_t group = 0;  ///< hash of the members
  std::uint64_t lane = 0;
  std::uint64_t epoch = 0;  ///< 0: for good; else forgotten when the epoch ends
  // clang-tidy 14 takes the 0 that a rewritten < compares with for a pointer.
  auto operator<=>(const CollectiveLane&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// One collective of a lane.
struct CollectiveId {
  CollectiveLane lane;
  std::uint64_t number = 0;
  auto operator<=>(const CollectiveId&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// The call that a member makes; all members must make the same.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kBarrier;
  /// Stands in the place of a root for collectives of tensors that devices do
  /// (d2d/collectives/device_group.h).
  static constexpr std::int32_t kOnDevices = -2;
  std::int32_t root = -1;   ///< -1: none
  std::int32_t dtype = -1;  ///< a c10::ScalarType; -1: no tensor
  /// The shape of the tensor (8 bytes a dimension), or what it is for (purpose_of()): at most 512
  /// bytes.
  std::string detail;
  bool operator==(const CollectiveCall&) const = default;
  /// Returns the call as text, as in "an all_reduce of Float [2, 3]", or "smp::barrier".
  std::string text() const;
  /// True if no member gets through it before all have come.
  bool waits_for_all() const noexcept { return kind != CollectiveKind::kBroadcast && root < 0; }
};

/// Returns what a collective is for: `what`, in the call `call` of the program where there is one,
/// as in "smp::save_safetensors: names of tensors".
std::string purpose_of(const char* what, const char* call);

/// The name of a collective in messages and reports. The texts outlive it.
struct CollectiveName {
  const char* what = "";   ///< as in "an all_reduce"
  const char* group = "";  ///< Members::text()
  /// The call of the program that all members must make: "smp::barrier"; "" within steps
  const char* call = "";
};

/// The rounds of messages within a collective.
enum class CollectivePhase : std::uint8_t { kExchange, kResult };

/// A message of one rank to another for a collective.
struct CollectiveMessage {
  CollectiveCall call;
  Payload payload;
  std::uint32_t sent_before = 0;  ///< messages from the same sender to this rank, modulo 2^32
};

/// The fibers of collectives wait here for messages, which may come before their collective is
/// called.
class CollectiveInbox {
 public:
  explicit CollectiveInbox(GlobalRank rank) : rank_(rank) {}

  /// Begins the next collective of `lane`, in which this rank makes `call`, which outlives it.
  CollectiveId begin(const CollectiveLane& lane, const CollectiveCall& call);
  void end(const CollectiveId& id);
  /// Begins a collective in a lane whose collectives the callers number themselves, upwards: a
  /// member may leave numbers out; messages that come for those are dropped.
  CollectiveId begin(const CollectiveLane& lane, std::uint64_t number, const CollectiveCall& call);
  /// Promises, in such a lane, that this member begins no collective up to `number` any more.
  void leave_out(const CollectiveLane& lane, std::uint64_t number);
  /// Returns the number that the next collective of `lane` has here.
  std::uint64_t next(const CollectiveLane& lane) const;
  /// True if take() would not suspend.
  bool has_come(const CollectiveId& id, CollectivePhase phase, GlobalRank peer) const;
  /// True if take() in this collective, whether it has begun here or not, would not suspend for
  /// `peer`: its message has come, or none can come any more.
  bool is_decided(const CollectiveId& id, CollectivePhase phase, GlobalRank peer) const;
  /// Lets `event`, which outlives the collective, be signalled whenever something of it arrives.
  void watch(const CollectiveId& id, fiber::Event& event) { rounds_.at(id).watcher = &event; }
  /// Returns the message of `peer`; suspends until it is there.
  /// @throws UsageError     a message of this collective belongs to a different call; or `peer` is
  ///                        in another collective, which it cannot leave without this rank.
  /// @throws PeerLostError  `peer` left, or abort() was called.
  Payload take(const CollectiveId& id, CollectivePhase phase, GlobalRank peer,
               const CollectiveName& name);
  /// Suspends until the tensors that `departure` counts have left.
  /// @throws PeerLostError  abort() was called.
  void await(const CollectiveId& id, Departure& departure, const CollectiveName& name);

  /// Counts a message, and keeps it if its collective is still to be finished here.
  void deliver(GlobalRank source, const CollectiveId& id, CollectivePhase phase,
               CollectiveMessage&& message);
  /// The number of lanes that are not forgotten.
  std::size_t lanes() const noexcept { return next_.size(); }
  /// The number of collectives that began here, or of which messages came, and that are not over.
  std::size_t open() const noexcept { return rounds_.size(); }
  void peer_left(GlobalRank peer, std::uint64_t sent, const std::string& why);
  void abort(const std::string& why);

  // Epochs: lanes that live for a while, a step say, and of which none is used twice.

  /// Makes waits in lanes of `epoch`, now and later, throw PeerLostError: it failed on `where` for
  /// `why`.
  void fail_epoch(std::uint64_t epoch, GlobalRank where, const std::string& why);
  /// Does the same for a failure that `source` told in a message.
  void peer_failed_epoch(GlobalRank source, std::uint64_t epoch, const std::string& why);
  /// Ends all epochs up to this one here: messages that still come for them are dropped.
  void end_epoch(std::uint64_t epoch);

 private:
  using Slot = std::pair<CollectivePhase, GlobalRank>;
  struct Round {                           // one collective
    const CollectiveCall* call = nullptr;  // once it began here
    std::map<Slot, CollectiveMessage> arrived;
    GlobalRank odd;  // who makes another call
    Slot awaited;
    fiber::Event* waiting = nullptr;
    fiber::Event* watcher = nullptr;
  };
  struct Farewell {
    std::uint64_t sent;
    std::string why;
  };
  struct EpochFailure {
    GlobalRank where;
    std::string why;
  };

  bool is_over(const CollectiveId& id) const;
  bool is_gone(GlobalRank peer) const;
  const CollectiveCall* other_call_of(GlobalRank peer) const;
  void check_agreement(const CollectiveId& id, const Round& round,
                       const CollectiveName& name) const;
  void check_may_come(const CollectiveId& id, GlobalRank peer, const CollectiveName& name) const;
  void check_not_ended(const CollectiveId& id, const CollectiveName& name) const;
  void check_no_other_call(const CollectiveId& id, GlobalRank peer,
                           const CollectiveName& name) const;
  void wait(fiber::Event*& place, const CollectiveName& name, GlobalRank peer);
  void wake_all();

  GlobalRank rank_;
  std::map<CollectiveLane, std::uint64_t> next_;  // number, by lane
  std::map<CollectiveId, Round> rounds_;
  std::vector<fiber::Event*> waiting_;
  std::map<GlobalRank, std::uint64_t> received_;   // messages so far
  std::map<GlobalRank, std::uint32_t> announced_;  // messages that its latest one says were sent
  std::map<GlobalRank, Farewell> left_;
  std::map<std::uint64_t, EpochFailure> failed_;  // by epoch
  std::uint64_t ended_epoch_ = 0;
  std::string aborted_;
};

}  // namespace smp::d2d
