// d2d/wires/cuda/cuda_ipc_wire.h: tensors between GPUs of one machine, from the memory of one
// process into that of another. Paper: §6, App. G.2. Threads: the rank's thread only; nothing here
// blocks, and nobody waits for a GPU.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "d2d/wire/wire.h"
#include "d2d/wire/wire_probe.h"
#include "d2d/wires/completions.h"
#include "d2d/wires/cuda/cuda_device.h"
#include "d2d/wires/cuda/cuda_ipc_memory.h"
#include "d2d/wires/cuda/page_window.h"

namespace smp::d2d {

/// Every rank sets an arena of its GPU's memory aside, once, with a window for each other rank, and
/// opens the arenas of all others. A sender takes free pages of his window at the receiver, puts a
/// copy there on a stream of its own, behind what computes the bytes, and tells the receiver at
/// once which pages and which event; the receiver puts a copy of the pages to their place behind
/// that event, on the stream that was LibTorch's when the place was named. So a transfer is
/// complete for the host long before its bytes are there, as everything else on a GPU is, and both
/// GPUs go on meanwhile. When the receiver's copy is done, pages and event go back to the sender.
///
/// Between processes of one GPU a stream that waits for another's event took 2 ms to go on
/// (docs/gpus.md). There a piece is announced when it is there, and nobody's stream waits.
///
/// Because a stream waits for what came first, not for what is ready first, a microbatch whose
/// sender is late delays one that came after it; the order of steps, which the server decides, is
/// the order on the GPU.
///
/// What ranks tell each other, and control bytes, travel over another wire.
class CudaIpcWire final : public Wire {
 public:
  /// @param messages  whose members are those of this wire
  /// @param gpus      CudaDevice::identity() of each member's, by position
  CudaIpcWire(std::unique_ptr<Wire> messages, std::unique_ptr<CudaDevice> device,
              const std::vector<std::string>& gpus, const CudaIpcOptions& options = {});
  /// Frees the memory of the wire; nothing if it was connected and not left.
  ~CudaIpcWire() override;

  /// Returns, for the other ranks, the handles of where they may write and, where events pass
  /// between processes, of the events of this rank.
  std::string offer() const { return memory_.offer(); }
  /// Opens the memory of the others.
  /// @param offers  those of all members, by position; before anything is sent
  /// @throws PeerLostError  this GPU cannot reach one of theirs.
  void connect(const std::vector<std::string>& offers) { memory_.connect(offers); }
  /// Closes memory of others, who may free it then: nothing may be sent any more.
  void disconnect() noexcept { memory_.disconnect(); }

  const char* name() const noexcept override { return "cuda_ipc"; }
  bool reaches(MemoryKind kind) const noexcept override { return kind == MemoryKind::kCuda; }
  using Wire::reaches;
  BufferPool& buffers() noexcept override { return messages_->buffers(); }
  /// Returns memory of this GPU for a probe of this wire, which it does not outlive.
  std::unique_ptr<ProbeMemory> probe_memory();
  void post(GlobalRank peer, ByteBuffer&& bytes) override;
  void send(std::span<const std::byte> bytes, GlobalRank peer, TransferId id, Token token) override;
  void receive(std::span<std::byte> bytes, GlobalRank peer, TransferId id, Token token) override;
  /// Reports transfers whose copies are still under way as well, and lets LibTorch's stream wait
  /// for them: whoever hears an answer may write to what it answers.
  bool complete() override;
  bool poll() override;
  void check_links() override { messages_->check_links(); }
  bool drained() const noexcept override;
  bool leave() override;
  base::Nanoseconds patience(bool unwinding) const noexcept override {
    return messages_->patience(unwinding);
  }
  void give_up(base::Nanoseconds waited, bool unwinding) noexcept override {
    messages_->give_up(waited, unwinding);
  }

 private:
  enum class MessageKind : std::uint32_t { kControl, kPiece, kFree };
  struct Piece {  // of a transfer: where it lies in the window of its sender
    TransferId id = 0;
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
    std::uint32_t page = 0;
    std::uint32_t event = 0;
    bool operator==(const Piece&) const = default;
  };
  struct Outgoing {
    std::span<const std::byte> bytes;
    TransferId id = 0;
    Token token = 0;
    std::size_t done = 0;
  };
  struct Copying {  // a transfer, until the event of its last piece
    std::uint32_t event = 0;
    Token token = 0;
  };
  struct SentPiece {
    GlobalRank to;
    Piece piece;
  };
  struct Posted {  // a receive
    TransferId id = 0;
    std::span<std::byte> bytes;
    Token token = 0;
    std::size_t missing = 0;
    CudaDevice::Stream stream = nullptr;
  };
  struct Reading {  // a piece, until its copy is done
    CudaDevice::Event done = nullptr;
    GlobalRank source;
    Piece piece;
  };
  struct Peer {
    explicit Peer(std::uint32_t pages) : window(pages) {}
    PageWindow window;               // which pages of this rank's window there are free
    std::deque<Outgoing> waiting{};  // for pages or events
    std::vector<Posted> receives{};
    std::vector<Piece> pieces{};  // that nobody receives yet
  };
  class Inbox;

  std::size_t position(GlobalRank rank) const {
    return static_cast<std::size_t>(members().position(rank));
  }
  Peer& peer(GlobalRank rank) { return peers_[position(rank)]; }
  std::uint32_t pages_of(std::uint64_t bytes) const noexcept;
  void tell(GlobalRank to, MessageKind kind, const Piece& piece);
  bool send_pieces(GlobalRank rank, Outgoing& transfer);
  bool send_waiting();
  bool announce_done();
  bool finish_done();
  bool free_read();
  void on_message(GlobalRank source, ByteBuffer&& bytes);
  void on_piece(GlobalRank source, const Piece& piece);
  void on_free(GlobalRank source, const Piece& piece);
  void copy_out(GlobalRank source, Posted& posted, const Piece& piece);
  void check_place(GlobalRank source, const Piece& piece) const;

  std::unique_ptr<Wire> messages_;
  CudaIpcOptions options_;
  CudaIpcMemory memory_;
  CudaDevice& device_;
  std::unique_ptr<Inbox> inbox_;
  CudaDevice::Event produced_;
  std::vector<std::uint32_t> free_events_;        // numbers
  std::vector<CudaDevice::Event> free_readings_;  // events
  std::vector<Peer> peers_;                       // by position; that of this rank is not used
  std::deque<Copying> copying_;                   // oldest first
  std::vector<std::optional<SentPiece>> lent_;    // pages and events that are, by event
  std::deque<SentPiece> unannounced_;             // oldest first
  std::deque<Reading> reading_;                   // oldest first
  std::size_t waiting_ = 0;                       // in the queues of all peers
  Completions completions_;
  bool closed_ = false;
};

}  // namespace smp::d2d
