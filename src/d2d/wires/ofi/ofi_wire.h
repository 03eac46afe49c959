// d2d/wires/ofi/ofi_wire.h: bytes between machines over libfabric: EFA, or TCP.
// Paper: §6, App. G.1. Threads: one at a time; nothing here blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "d2d/wire/byte_buffer.h"
#include "d2d/wire/slots.h"
#include "d2d/wire/wire.h"
#include "d2d/wires/ofi/ofi_endpoint.h"
#include "d2d/wires/ofi/ofi_frame.h"
#include "d2d/wires/ofi/ofi_inbox.h"
#include "d2d/wires/ofi/ofi_memory.h"
#include "d2d/wires/ofi/ofi_outbox.h"

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

/// A wire over libfabric. It relies on no order of messages, since EFA promises none. Control bytes
/// travel in frames of a fixed size, numbered for each ordered pair of ranks, and are put in order
/// by the receiver. Data goes nowhere before its receiver has granted it a place; then the sender
/// writes it there, segment by segment, and each write tells the receive that it belongs to. The
/// receiver counts them.
class OfiWire final : public Wire {
 public:
  /// @param addresses  of the endpoints of all `members`, by position; all members construct theirs
  OfiWire(GlobalRank rank, Members members, std::unique_ptr<OfiEndpoint> endpoint,
          const std::vector<std::string>& addresses, const OfiWireOptions& options = {});
  /// Ends the wire at once: no memory but its own is used from then on.
  ~OfiWire() override;

  const char* name() const noexcept override { return "ofi"; }
  bool takes_other_threads() const noexcept override { return true; }
  BufferPool& buffers() noexcept override { return buffers_; }
  void post(GlobalRank peer, ByteBuffer&& bytes) override;
  void send(std::span<const std::byte> bytes, GlobalRank peer, TransferId id, Token token) override;
  void receive(std::span<std::byte> bytes, GlobalRank peer, TransferId id, Token token) override;
  bool complete() override;
  bool poll() override;
  /// Sends something to every peer, since an endpoint has no other way to hear that a peer is gone.
  void check_links() override;
  bool drained() const noexcept override;
  bool leave() override;

 private:
  struct Peer;
  struct Outgoing {  // a transfer that was granted, is to be sent, or both
    Peer* peer = nullptr;
    TransferId id = 0;
    std::span<const std::byte> bytes;
    Token token = 0;
    bool is_sent = false;  // by send()
    bool is_granted = false;
    bool is_awaited = false;  // the peer has received it, and says so in a frame that waits
    OfiGrant grant;
    OfiMemory memory;
    std::size_t written = 0;           // bytes
    std::size_t writes_in_flight = 0;  // segments
  };
  struct Receive {
    Peer* peer = nullptr;
    TransferId id = 0;
    Token token = 0;
    std::size_t missing = 0;  // segments
    OfiMemory memory;
  };
  enum class Kind : std::uint8_t { kFrame, kReceive, kWrite };
  struct Operation : OfiOperation {
    Kind kind = Kind::kFrame;
    Peer* peer = nullptr;  // of a receive: nobody yet
    Outgoing* transfer = nullptr;
    std::size_t bytes = 0;
    std::span<std::byte> frame;
  };
  struct Peer {
    explicit Peer(GlobalRank peer) : rank(peer), inbox(peer) {}

    const GlobalRank rank;
    std::uint64_t address = 0;  // as the endpoint names it
    bool has_left = false;
    bool is_reached = false;              // something was sent there
    base::Nanoseconds refused_since = 0;  // libfabric takes nothing for it; 0: it does
    base::Nanoseconds refused_last = 0;

    OfiOutbox outbox;
    std::deque<OfiGrant> grants;    // not started
    std::deque<Outgoing*> writing;  // with segments that are not started
    std::size_t frames_in_flight = 0;
    std::size_t writes_in_flight = 0;
    std::unordered_map<TransferId, Outgoing> outgoing;

    OfiInbox inbox;
    bool is_readable = false;
  };

  Peer& peer(GlobalRank rank) {
    return *peers_[static_cast<std::size_t>(members().position(rank))];
  }
  template <class Action>
  void for_each_peer(Action&& action);
  void make_frames();

  void start_waiting();
  void start_waiting_for(Peer& to);
  void queue(Peer& to, OfiFrameKind kind, ByteBuffer&& bytes = {});
  bool start_grants(Peer& to);
  void start_messages(Peer& to);
  void start_writes(Peer& to);
  Operation* free_frame(const Peer& to) const;
  bool start_frame(Peer& to, Operation& operation, std::size_t bytes, const OfiTrailer& trailer);
  void start_transfer(Outgoing& transfer);
  bool start_segment(Outgoing& transfer);
  bool is_full() const;
  bool is_started(int status, Operation& operation);

  bool finish(const OfiCompletion& completion);
  bool finish_write(Operation& operation, bool failed);
  void give_up(Outgoing& transfer);
  bool finish_segment(std::uint32_t receive);
  void tell(Peer& to, TransferId received);
  void take_frame(Operation& operation, std::size_t bytes);
  void take_grants(Peer& from, std::span<const std::byte> grants);
  void post_receives();

  enum class Reading : std::uint8_t { kAll, kNoControl };
  bool read_frames(Reading reading);
  bool read_frames_of(Peer& source, Reading reading);
  void make_readable(Peer& source);
  bool must_wait(Peer& source, TransferId received);

  void refuse(Peer& to);
  void lose(const std::string& what, const char* why);
  void fail(const Operation* operation, const std::string& why);
  void require_no_loss() const;

  OfiWireOptions options_;
  std::unique_ptr<OfiEndpoint> endpoint_;
  BufferPool buffers_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by position
  std::vector<std::byte> frame_memory_;
  OfiMemory frame_registration_;
  std::vector<std::unique_ptr<Operation>> operations_;
  std::vector<Operation*> free_frames_, free_writes_;
  std::vector<Operation*> unposted_;  // receives
  Slots<Receive> receives_;
  std::vector<OfiCompletion> completions_;
  std::vector<Peer*> readable_, reading_;  // whose next frame has come
  std::size_t turn_ = 0;                   // of the peer that is the first to start what waits
  std::size_t waiting_ = 0;                // to be started, in the queues of all peers
  std::size_t frames_in_flight_ = 0, writes_in_flight_ = 0;
  std::size_t sends_in_flight_ = 0;
  base::SteadyClock clock_;
  base::Nanoseconds checked_ = 0;
  std::string lost_;  // what happened to the first peer that was lost
  enum class Leaving : std::uint8_t { kNo, kWaiting, kLeft } leaving_ = Leaving::kNo;
};

}  // namespace smp::d2d
