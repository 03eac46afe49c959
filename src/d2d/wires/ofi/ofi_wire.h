// d2d/wires/ofi/ofi_wire.h: bytes between machines over libfabric: EFA, or TCP.
// Paper: §6, App. G.1. Threads: one at a time; nothing here blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "d2d/wire/byte_buffer.h"
#include "d2d/wire/slots.h"
#include "d2d/wire/wire.h"
#include "d2d/wires/ofi/ofi_endpoint.h"
#include "d2d/wires/ofi/ofi_loss.h"
#include "d2d/wires/ofi/ofi_memory.h"
#include "d2d/wires/ofi/ofi_peer.h"
#include "d2d/wires/ofi/ofi_sender.h"
#include "d2d/wires/ofi/ofi_tasks.h"

namespace smp::d2d {

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
  struct Receive {
    OfiPeer* peer = nullptr;
    TransferId id = 0;
    Token token = 0;
    std::size_t missing = 0;  // segments
    OfiMemory memory;
  };
  OfiPeer& peer(GlobalRank rank) {
    return *peers_[static_cast<std::size_t>(members().position(rank))];
  }
  template <class Action>
  void for_each_peer(Action&& action);
  void start_transfer(OfiTransfer& transfer);
  bool finish(const OfiCompletion& completion);
  bool finish_write(OfiTask& task, bool failed);
  bool finish_segment(std::uint32_t receive);
  void take_frame(OfiTask& task, std::size_t bytes);
  void take_grants(OfiPeer& from, std::span<const std::byte> grants);

  enum class Reading : std::uint8_t { kAll, kNoControl };
  bool read_frames(Reading reading);
  bool read_frames_of(OfiPeer& source, Reading reading);
  void make_readable(OfiPeer& source);
  bool must_wait(OfiPeer& source, TransferId received);

  OfiWireOptions options_;
  std::unique_ptr<OfiEndpoint> endpoint_;
  BufferPool buffers_;
  OfiPeers peers_;
  OfiLoss loss_;
  std::unique_ptr<OfiTasks> tasks_;
  std::optional<OfiSender> sender_;  // always there
  Slots<Receive> receives_;
  std::vector<OfiCompletion> completions_;
  std::vector<OfiPeer*> readable_, reading_;  // whose next frame has come
  std::size_t sends_in_flight_ = 0;
  base::SteadyClock clock_;
  base::Nanoseconds checked_ = 0;
  enum class Leaving : std::uint8_t { kNo, kWaiting, kLeft } leaving_ = Leaving::kNo;
};

}  // namespace smp::d2d
