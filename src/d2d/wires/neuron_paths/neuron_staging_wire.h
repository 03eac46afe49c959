// d2d/wires/neuron_paths/neuron_staging_wire.h: tensors between Neuron cores of any ranks, through
// the memory of their hosts. Threads: the rank's thread only; nothing here blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "d2d/wires/fifo.h"
#include "d2d/wires/neuron/neuron_copies.h"
#include "d2d/wires/neuron_paths/neuron_wire.h"

namespace smp::d2d {

/// The sizes of the wire, the same on all ranks.
struct NeuronStagingOptions {
  std::size_t piece_bytes = std::size_t{1} << 20;  ///< at most 65,536 of them are a transfer
  std::uint32_t buffers = 8;                       ///< of a piece, for each direction
};

/// The path that always works: a piece is copied to a buffer of the sender's host, carried by
/// another wire, and copied from a buffer of the receiver's host, while other pieces do the other
/// two. The receiver asks for each piece once it has a buffer for it. So a sender's buffer is only
/// ever waiting for bytes to move, and no rank can hold buffers that others need to go on.
class NeuronStagingWire final : public NeuronWire {
 public:
  /// @param host    for what ranks tell each other and for the pieces; its members are those of
  /// this wire
  /// @param copies  of this rank's core
  /// @param places  outlives this
  NeuronStagingWire(std::unique_ptr<Wire> host, std::unique_ptr<NeuronCopies> copies,
                    const NeuronPlaces& places, const NeuronStagingOptions& options = {});
  ~NeuronStagingWire() override;

  const char* name() const noexcept override { return "neuron_staging"; }
  void check_links() override;

 private:
  enum : std::uint32_t { kAsk = kOwn };  // its number is that of the piece
  struct Outgoing : Transfer {
    GlobalRank to;
    std::uint64_t asked = 0, sent = 0;  // pieces
  };
  struct Incoming : Transfer {
    GlobalRank from;
    std::uint64_t asked = 0, written = 0;  // pieces
  };
  struct Piece {
    GlobalRank peer{0};
    TransferId id = 0;
    std::uint64_t number = 0;
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

  std::uint64_t pieces_of(std::size_t size) const noexcept {
    return (size + options_.piece_bytes - 1) / options_.piece_bytes;
  }
  std::size_t bytes_of(std::size_t size, std::uint64_t piece) const noexcept {
    return std::min(options_.piece_bytes, size - piece * options_.piece_bytes);
  }
  NeuronPlace place_of(const NeuronPlace& whole, std::uint64_t piece) const noexcept;
  Outgoing& outgoing(GlobalRank to, TransferId id);
  Incoming& incoming(GlobalRank from, TransferId id);
  void on_send(GlobalRank to, const Transfer& transfer) override;
  void on_matched(GlobalRank from, const Transfer& transfer) override;
  bool on_told(GlobalRank source, std::uint32_t kind, const Message& message) override;
  void on_bytes_sent(Token token) override;
  void on_bytes_received(Token token) override;
  bool advance() override;
  bool end() override;
  bool ask_for_pieces();
  bool copy_to_host();
  bool copy_to_device();

  NeuronStagingOptions options_;
  Buffers sending_, receiving_;
  std::unique_ptr<NeuronCopies> copies_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;  // that both sides have named
  Fifo<Piece> asked_;               // of transfers of this rank, to be copied to the host
  Fifo<Piece> to_ask_;              // first pieces not asked for yet, of transfers
  Fifo<std::uint32_t> arrived_;     // buffers, to be copied to the device
};

}  // namespace smp::d2d
