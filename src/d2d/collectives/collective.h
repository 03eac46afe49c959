// d2d/collectives/collective.h: one call of a collective on this rank, while it runs. Threads: the
// rank's thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "d2d/channel/departures.h"
#include "d2d/collectives/collective_inbox.h"
#include "smp/rank.h"

namespace smp::d2d {

class Communicator;
class Communicators;

/// Sends and takes the messages of one collective. Its number in the lane is taken when it begins.
class Collective {
 public:
  /// @param what  for messages and reports; outlives this
  Collective(const Communicator& ranks, CollectiveCall call, const char* what);
  /// Begins number `number` of a lane whose collectives the callers number.
  Collective(const Communicator& ranks, std::uint64_t number, CollectiveCall call,
             const char* what);
  ~Collective();
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  /// Sends memory of the caller, who may change it after await_departure().
  void send(GlobalRank peer, const Payload& payload);
  void send_part(GlobalRank peer, const at::Tensor& part);
  /// Sends several tensors in one message, on the same terms.
  void send_parts(CollectivePhase phase, GlobalRank peer, c10::ArrayRef<at::Tensor> parts);
  /// Sends a result, which belongs to nobody else.
  void send_result(GlobalRank peer, const at::Tensor& result);
  void send_result(GlobalRank peer, std::string_view result);

  /// Returns the message of `peer`; suspends until it is there. See CollectiveInbox::take.
  Payload take(CollectivePhase phase, GlobalRank peer);
  /// True if take() would not suspend.
  bool has_come(CollectivePhase phase, GlobalRank peer) const;
  /// True if take() would not suspend, since the message is here or none can come any more.
  bool is_decided(CollectivePhase phase, GlobalRank peer) const;
  /// Signals `event` when something arrives; see CollectiveInbox::watch.
  void watch(fiber::Event& event);
  /// Takes a message of one tensor, which must be of these sizes and this dtype. Suspends as
  /// take().
  at::Tensor take_tensor(CollectivePhase phase, GlobalRank peer, at::IntArrayRef sizes,
                         c10::ScalarType dtype);
  at::Tensor take_tensor(CollectivePhase phase, GlobalRank peer, const at::Tensor& like) {
    return take_tensor(phase, peer, like.sizes(), like.scalar_type());
  }
  /// Suspends until all parts have left.
  void await_departure();
  /// Suspends until the tensors that `departure` counts have left.
  void await(Departure& departure);
  const CollectiveId& id() const noexcept { return id_; }

 private:
  void send(CollectivePhase phase, GlobalRank peer, std::string_view bytes,
            c10::ArrayRef<at::Tensor> tensors, std::shared_ptr<Departure> departure);

  Communicators& owner_;
  const std::shared_ptr<const Members> members_;
  const CollectiveCall call_;
  const CollectiveName name_;
  CollectiveId id_;
  std::shared_ptr<Departure> departure_;
};

}  // namespace smp::d2d
