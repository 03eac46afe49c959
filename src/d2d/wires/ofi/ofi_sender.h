// d2d/wires/ofi/ofi_sender.h: what an OfiWire has to send, and when libfabric takes it.
// Threads: one at a time; nothing here blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "d2d/wire/byte_buffer.h"
#include "d2d/wires/ofi/ofi_endpoint.h"
#include "d2d/wires/ofi/ofi_loss.h"
#include "d2d/wires/ofi/ofi_peer.h"
#include "d2d/wires/ofi/ofi_tasks.h"

namespace smp::d2d {

/// The options of the wire, which all ranks name alike.
struct OfiWireOptions {
  /// The bytes of a frame: about what a packet of EFA's carries.
  std::size_t frame_bytes = 8192;
  /// The bytes of a write, or as many as the provider takes. Several are under way at a time.
  std::size_t segment_bytes = std::size_t{1} << 20;
  /// The time for which libfabric may take nothing for a peer that it could reach before, while
  /// nothing comes from there, until that peer is lost.
  base::Nanoseconds patience = 5 * base::kSecond;
  /// The secret of the job, in every frame: frames without it are never looked at.
  std::uint64_t secret = 0;
};

/// Sends frames to peers and writes to their memory. What libfabric does not take now waits in the
/// queues of the peer.
class OfiSender {
 public:
  /// The frames to one peer at a time.
  static constexpr std::size_t kFramesPerPeer = 8;
  /// The longest time between two looks at a peer that tell that libfabric took nothing meanwhile.
  static constexpr base::Nanoseconds kBetweenChecks = base::kSecond;

  /// What this object works on, and outlives.
  struct Parts {
    const OfiWireOptions& options;
    OfiEndpoint& endpoint;
    OfiTasks& tasks;
    const OfiPeers& peers;
    BufferPool& buffers;
    OfiLoss& loss;
  };
  /// @param position  of this rank, among the peers
  OfiSender(const Parts& parts, int position) noexcept
      : parts_(parts), position_(static_cast<std::size_t>(position)) {}

  // What these put in a queue waits until it is started.

  void queue(OfiPeer& to, OfiFrameKind kind, ByteBuffer&& bytes = {});
  /// Lets the next frame tell the peer that a transfer was received; makes a frame if there are
  /// many to tell.
  void tell(OfiPeer& to, TransferId received);
  void grant(OfiPeer& to, const OfiGrant& grant);
  /// Queues the bytes of a transfer that was granted and whose memory is registered.
  void write(OfiTransfer& transfer);
  /// Drops the rest of a transfer to a peer that has left, since it need not arrive.
  void give_up(OfiTransfer& transfer);

  /// Starts what waits. Each time another peer is the first, since what libfabric takes at once is
  /// for all of them.
  void start_waiting();
  /// Starts what waits for a peer, the short first. If libfabric does not take something now, that
  /// waits, and so does all behind it.
  void start_waiting_for(OfiPeer& to);

  /// Notes that a frame, or a write, has ended.
  void end_frame(OfiTask& task);
  void end_write(OfiTask& task);
  /// True if nothing waits, and no frame is under way.
  bool drained() const noexcept { return waiting_ == 0 && parts_.tasks.frames_in_flight() == 0; }

 private:
  bool start_grants(OfiPeer& to);
  void start_messages(OfiPeer& to);
  void start_writes(OfiPeer& to);
  OfiTask* free_frame(const OfiPeer& to) const;
  bool start_frame(OfiPeer& to, OfiTask& task, std::size_t bytes, const OfiTrailer& trailer);
  bool start_segment(OfiTransfer& transfer);
  bool is_full() const;
  bool is_started(int status, OfiTask& task);
  void refuse(OfiPeer& to);

  const Parts parts_;
  const std::size_t position_;
  std::size_t turn_ = 0;     // of the peer that is the first to start what waits
  std::size_t waiting_ = 0;  // to be started, in the queues of all peers
  base::SteadyClock clock_;
};

}  // namespace smp::d2d
