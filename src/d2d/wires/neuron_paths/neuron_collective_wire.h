// d2d/wires/neuron_paths/neuron_collective_wire.h: tensors between Neuron cores of an instance by
// collectives of two, over NeuronLink. Threads: the rank's thread only; nothing here blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "d2d/wires/fifo.h"
#include "d2d/wires/neuron/neuron_gathers.h"
#include "d2d/wires/neuron_paths/neuron_wire.h"

namespace smp::d2d {

/// A turn of two ranks is a gather that takes a piece each way, or one way and nothing back. A core
/// has one at a time, and both ranks must enter it, so they take their cores for it in one order:
/// the lower rank takes its own core, then asks the higher one, which takes its own as soon as that
/// is free, and answers. Who holds a core waits only for cores of higher ranks, so no ring of ranks
/// waits for each other, though transfers have no common order; and nobody enters what the other
/// may not.
///
/// The receiver of a transfer tells its sender that it is ready; pieces of a transfer come in
/// order.
class NeuronCollectiveWire final : public NeuronWire {
 public:
  /// @param messages  whose members are those of this wire
  /// @param gathers   of this rank's core, which has joined by the number of its rank
  /// @param places    outlives this
  NeuronCollectiveWire(std::unique_ptr<Wire> messages, std::unique_ptr<NeuronGathers> gathers,
                       const NeuronPlaces& places);

  const char* name() const noexcept override { return "neuron_collectives"; }

 private:
  enum : std::uint32_t {
    kReady = kOwn,  // the receiver of the transfer is ready
    kWanted,        // the higher rank has something to send; how many turns it was told of
    kTurn,          // the lower rank has its core, for a piece of the transfer, or kNone
    kEntered,       // the higher rank has its core as well; the same
  };
  static constexpr TransferId kNone = ~TransferId{0};
  struct Moving : Transfer {
    std::size_t done = 0;  // bytes
  };
  struct Peer {
    std::vector<Transfer> named{};   // sends that it is not ready for
    Fifo<Moving> outgoing{};         // whose receiver is ready
    std::vector<Moving> incoming{};  // that it was told of
    Fifo<ByteBuffer> held{};         // control bytes that came before the end of a turn
    bool is_waiting = false;         // for this rank's core
    bool is_wanted = false;          // a turn, by the higher of the two; there: or one is coming
    TransferId offered = kNone;      // by the lower one, in the turn that waits
    std::uint64_t turns = 0;         // that were begun
    std::string name{};
  };
  enum class Stage : std::uint8_t { kLoading, kMeeting, kExchanging, kUnloading };
  struct Turn {
    GlobalRank with;
    std::size_t out = 0, in = 0;  // bytes of this rank's piece, and of the peer's
    TransferId out_id = kNone, in_id = kNone;
    bool is_met = false;  // the peer has its core as well
    Stage stage = Stage::kLoading;
    bool is_started = false;  // what the stage does
  };

  Peer& peer(GlobalRank rank) { return peers_[static_cast<std::size_t>(position(rank))]; }
  int position(GlobalRank rank) const { return members().position(rank); }
  bool is_below(GlobalRank other) const { return position(rank()) < position(other); }
  std::size_t piece_of(const Moving& transfer) const noexcept;
  Moving& incoming(GlobalRank from, TransferId id);
  void on_send(GlobalRank to, const Transfer& transfer) override;
  void on_matched(GlobalRank from, const Transfer& transfer) override;
  bool on_told(GlobalRank source, std::uint32_t kind, const Message& message) override;
  void on_control(GlobalRank source, ByteBuffer&& bytes) override;
  bool hand_on_kept() override;
  bool advance() override;
  bool end() override { return !turn_ && waiting_.empty(); }
  void on_ready(GlobalRank source, TransferId id);
  void on_turn(GlobalRank source, const Message& message);
  void want_turn(GlobalRank with);
  void on_wanted(GlobalRank source, std::uint64_t turns_known);
  void wait_for_core(GlobalRank with);
  bool take_core();
  void note_incoming(Turn& turn, TransferId id);
  void note_outgoing(Turn& turn);
  bool may_answer_early(GlobalRank source) const noexcept;
  bool step();
  bool start_stage();
  void end_turn();

  std::unique_ptr<NeuronGathers> gathers_;
  std::vector<Peer> peers_;     // by position; that of this rank is not used
  Fifo<GlobalRank> waiting_;    // peers, for a turn of this core
  std::optional<Turn> turn_{};  // that this core is taken for
  std::size_t held_ = 0;        // of all peers
};

}  // namespace smp::d2d
