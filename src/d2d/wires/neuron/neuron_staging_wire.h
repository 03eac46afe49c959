// d2d/wires/neuron/neuron_staging_wire.h: tensors between Neuron cores of any ranks, through the
// memory of their hosts. Threads: the rank's thread only; nothing here blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "d2d/wire/wire.h"
#include "d2d/wires/completions.h"
#include "d2d/wires/neuron/neuron_copies.h"
#include "d2d/wires/neuron/neuron_places.h"

namespace smp::d2d {

/// The sizes of the wire, the same on all ranks.
struct NeuronStagingOptions {
  std::size_t piece_bytes = std::size_t{1} << 20;  ///< at most 65,536 of them are a transfer
  std::uint32_t buffers = 8;                       ///< of a piece, for each direction
};

/// The path that always works: a piece is copied to a buffer of the sender's host, carried by
/// another wire, and copied from a buffer of the receiver's host, while other pieces do the other
/// two. A sender tells of its transfer; the receiver asks for each piece once it has a buffer for
/// it. So a sender's buffer is only ever waiting for bytes to move, and no rank can hold buffers
/// that others need to go on.
///
/// What ranks tell each other, control bytes, and the pieces travel over the other wire, which this
/// one has for itself.
class NeuronStagingWire final : public Wire {
 public:
  /// @param host    whose members are those of this wire
  /// @param copies  of this rank's core
  /// @param places  outlives this
  NeuronStagingWire(std::unique_ptr<Wire> host, std::unique_ptr<NeuronCopies> copies,
                    const NeuronPlaces& places, const NeuronStagingOptions& options = {});
  ~NeuronStagingWire() override;

  const char* name() const noexcept override { return "neuron_staging"; }
  bool reaches(MemoryKind kind) const noexcept override { return kind == MemoryKind::kNeuron; }
  using Wire::reaches;
  BufferPool& buffers() noexcept override { return host_->buffers(); }
  void post(GlobalRank peer, ByteBuffer&& bytes) override;
  void send(std::span<const std::byte> bytes, GlobalRank peer, TransferId id, Token token) override;
  void receive(std::span<std::byte> bytes, GlobalRank peer, TransferId id, Token token) override;
  bool complete() override;
  bool poll() override;
  void check_links() override;
  bool drained() const noexcept override;
  bool leave() override;
  base::Nanoseconds patience(bool unwinding) const noexcept override {
    return host_->patience(unwinding);
  }
  void give_up(base::Nanoseconds waited, bool unwinding) noexcept override {
    host_->give_up(waited, unwinding);
  }

 private:
  enum class MessageKind : std::uint32_t { kControl, kTransfer, kPiece };
  struct Message {
    TransferId id = 0;
    std::uint64_t number = 0;  // kTransfer: its size; kPiece: of the piece that is asked for
  };
  struct Outgoing {
    NeuronPlace place;
    std::size_t size = 0;
    std::uint64_t asked = 0, sent = 0;  // pieces
    GlobalRank to;
    TransferId id = 0;
    Token token = 0;
  };
  struct Incoming {
    NeuronPlace place;
    std::size_t size = 0;
    std::uint64_t asked = 0, written = 0;  // pieces
    GlobalRank from;
    TransferId id = 0;
    Token token = 0;
    bool is_announced = false;
  };
  struct Piece {
    GlobalRank peer;
    TransferId id = 0;
    std::uint64_t number = 0;
  };
  struct Announced {
    GlobalRank from;
    TransferId id = 0;
    std::uint64_t size = 0;
  };
  /// Host memory for pieces, lent by number.
  struct Buffers {
    Buffers(std::size_t bytes, std::uint32_t count);
    std::uint32_t take(const Piece& piece);
    std::span<std::byte> bytes(std::uint32_t buffer, std::size_t size) {
      return std::span(memory[buffer]).first(size);
    }
    std::vector<std::vector<std::byte>> memory;
    std::vector<Piece> pieces;
    std::vector<std::uint32_t> free;
  };
  class Inbox;

  std::uint64_t pieces_of(std::size_t size) const noexcept {
    return (size + options_.piece_bytes - 1) / options_.piece_bytes;
  }
  std::size_t bytes_of(std::size_t size, std::uint64_t piece) const noexcept {
    return std::min(options_.piece_bytes, size - piece * options_.piece_bytes);
  }
  NeuronPlace place_of(const NeuronPlace& whole, std::uint64_t piece) const noexcept;
  Outgoing& outgoing(GlobalRank to, TransferId id);
  Incoming& incoming(GlobalRank from, TransferId id);
  void tell(GlobalRank to, MessageKind kind, const Message& message);
  void on_message(GlobalRank source, ByteBuffer&& bytes);
  void on_announced(GlobalRank source, const Message& message);
  void on_asked(GlobalRank source, const Message& message);
  void on_piece_sent(std::uint32_t buffer);
  void announce(Incoming& transfer, std::uint64_t size);
  bool ask_for_pieces();
  bool copy_to_host();
  bool copy_to_device();
  bool advance();

  NeuronStagingOptions options_;
  Buffers sending_, receiving_;  // end after the other wire
  std::unique_ptr<Wire> host_;
  const NeuronPlaces& places_;
  std::unique_ptr<Inbox> inbox_;
  std::unique_ptr<NeuronCopies> copies_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::vector<Announced> announced_;   // that nobody receives yet
  std::deque<Piece> asked_;            // of transfers of this rank, to be copied to the host
  std::deque<Piece> to_ask_;           // first pieces not asked for yet, of transfers
  std::deque<std::uint32_t> arrived_;  // buffers, to be copied to the device
  Completions completions_;
  bool leaving_ = false;
};

}  // namespace smp::d2d
