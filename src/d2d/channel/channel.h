// d2d/channel/channel.h: moves frames (a header, a body and tensors) between ranks, whatever the
// wires. Paper: §6, App. G. Threads: the rank's thread only; nothing here suspends a fiber.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/forked_child.h"
#include "d2d/channel/departures.h"
#include "d2d/channel/frame.h"
#include "d2d/channel/traffic.h"

namespace smp::d2d {

/// A complete frame. Header and body are valid only during the call that brings it; the header lies
/// on an 8-byte boundary.
struct ArrivedFrame {
  std::span<const std::byte> header;
  std::span<const std::byte> body;
  std::vector<at::Tensor> tensors;
};

/// Counters since construction, for tests, formulas and the run's report.
struct ChannelCounters {
  std::uint64_t frames_sent = 0;
  std::uint64_t frames_received = 0;
  std::uint64_t header_bytes_sent = 0;  ///< headers and bodies
  std::uint64_t tensor_bytes_sent = 0;
  struct Peer {
    std::int64_t frames = 0, tensor_bytes = 0;
  };
  std::vector<Peer> sent_to;  ///< by position among the channel's members

  void count_sent(const FrameToSend& frame, int peer);
};

/// Point-to-point frames between this rank and its peers. Frames without data-plane tensors are
/// delivered in the order sent for each ordered pair of ranks; a frame that waits for its tensors
/// may be overtaken. No order holds between different pairs.
class Channel final {
 public:
  /// Called from poll() for each complete frame. Must not suspend. An exception that leaves it is a
  /// failure of the channel.
  using Receiver = std::function<void(GlobalRank source, ArrivedFrame&& frame)>;
  /// Called when something went wrong that no caller waits for (a tensor that was changed in
  /// flight, a peer that is gone, a malformed frame).
  using FailureHandler = std::function<void(const std::string& what)>;

  explicit Channel(Routes routes);
  /// Calls close() if nobody did; ends the whole job if the other ranks do not come in time (while
  /// an exception unwinds: when this process exits, so that the exception can be reported).
  ~Channel();

  GlobalRank rank() const noexcept { return routes().rank(); }
  /// The number of ranks that the channel connects, this one among them.
  int size() const noexcept { return members().size(); }
  /// The ranks that the channel connects; of a channel of the whole job 0 to size() - 1.
  const Members& members() const noexcept { return routes().members(); }
  const Routes& routes() const noexcept { return traffic_.routes(); }

  /// Starts sending and returns at once. Header, body and tensors up to kInlineBytes are copied.
  /// Larger tensors leave without a copy, and are kept alive, without their autograd history. Those
  /// of the server may be written to at once: they are lent (d2d/lend/loans.h) or leave
  /// copy-on-write, a small part of a large storage as a copy. Of others, and where LibTorch has no
  /// copy-on-write (memory of a GPU among them), one whose `_version()` moved before it had left is
  /// reported.
  /// @param departure  counts tensors that have not left yet
  /// Tensors of a GPU go to the peer's GPU over a wire that reaches its memory, stream-ordered:
  /// nobody waits for the GPU. Where there is none they travel through host memory, and this call
  /// waits until they are computed.
  /// @throws UsageError     `peer` is out of range or this rank; this is a forked child.
  /// @throws PeerLostError  the wire refused; `peer` or the job is probably gone. If the channel
  ///                        has failed, later calls say why.
  void send(GlobalRank peer, Port port, std::span<const std::byte> header, std::string_view body,
            c10::ArrayRef<at::Tensor> tensors,
            const std::shared_ptr<Departure>& departure = nullptr);

  /// Advances sends and receives, and hands complete frames to the receivers. Returns true if
  /// anything moved. Independent of LibTorch's thread-local state (inference mode and friends). In
  /// a forked child nothing moves: what comes is its parent's.
  bool poll();
  /// Starts a thread that moves tensors while nobody polls. Receivers, the failure handler and
  /// whoever waits for a departure are told by poll() as before.
  /// @throws UsageError        a wire is bound to the rank's thread: bound_to_one_thread()
  /// @throws UnsupportedError  the machine has no more threads.
  void move_beside_rank() { traffic_.move_beside_rank(); }
  /// Sets how long tensors may be missing: the channel fails if those of a message have not come
  /// within `deadline` after the message, and another second for each MB, whatever else moves; 0:
  /// no limit. Checked every 2^18 polls: at once where a rank waits and spins, after two minutes
  /// where it sleeps between polls, later where it computes meanwhile.
  void set_deadline(base::Nanoseconds deadline) noexcept { traffic_.set_deadline(deadline); }
  /// Looks for messages that were lost on the way; see Wire. Call it again and again while nothing
  /// moves.
  void check_links();
  /// True if no send of this rank is in flight.
  bool drained() const noexcept;
  /// Leaves together with all other ranks: waits until the sends of all have arrived. Frames that
  /// arrive meanwhile are dropped. Returns false if the others did not come within `deadline`: call
  /// it again, or end the job. Blocks.
  bool close(base::Nanoseconds deadline);

  /// Sets the receiver of a port. Frames for a port without a receiver are kept until it has one.
  void set_receiver(Port port, Receiver receiver);
  void set_failure_handler(FailureHandler handler) { on_failure_ = std::move(handler); }
  /// Ends the channel as if a wire had failed, because something else that this rank shares with
  /// others is lost.
  void end(const std::string& why) noexcept;
  const ChannelCounters& counters() const noexcept { return counters_; }
  /// Returns the reason why this channel ended, with its rank; empty: it did not. A channel that
  /// has ended moves nothing any more.
  const std::string& end() const noexcept { return end_; }

 private:
  enum class State : std::uint8_t { kOpen, kClosing, kClosed, kFailed };
  struct Inlet {  // of a port
    Receiver receiver;
    std::vector<Arrival> kept;  // for want of a receiver
  };

  void check_can_send(GlobalRank peer) const;
  void send_tensor(GlobalRank peer, DataTensor& data, c10::intrusive_ptr<c10::StorageImpl> memory,
                   const std::shared_ptr<Departure>& departure);
  void tell(News& news);
  void deliver(Arrival&& arrival);
  bool deliver_kept();
  template <class Action>
  void guarded(Action&& action) noexcept;
  void fail(const std::string& what) noexcept;

  Traffic traffic_;
  State state_ = State::kOpen;
  bool polling_ = false;
  std::string end_;
  int exceptions_at_start_;
  const base::MadeHere made_here_;  // in a forked child all of this is its parent's
  std::array<Inlet, kPorts> inlets_;
  bool any_kept_ = false;  // by an inlet
  FailureHandler on_failure_;
  ChannelCounters counters_;
  TransferId next_transfer_ = 0;
  std::vector<DataTensor> data_tensors_;  // of the frame being sent
  Departures departures_;
  News news_;  // empty but within poll()
};

}  // namespace smp::d2d
