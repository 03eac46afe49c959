// d2d/wires/neuron_paths/neuron_wire.h: what all wires between Neuron cores have in common: how two
// ranks tell each other of a transfer. Threads: the rank's thread only; nothing here blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "d2d/wire/wire.h"
#include "d2d/wires/completions.h"
#include "d2d/wires/neuron/neuron_places.h"

namespace smp::d2d {

/// A sender tells of its transfer over another wire, which this one has for itself. Once both sides
/// have named it, on_matched() lets the receiver go on in its own way. What happens to a transfer
/// of two lengths nobody says of the runtime, so it is not begun. Control bytes travel over the
/// other wire as well.
class NeuronWire : public Wire {
 public:
  ~NeuronWire() override;

  bool reaches(MemoryKind kind) const noexcept override { return kind == MemoryKind::kNeuron; }
  using Wire::reaches;
  BufferPool& buffers() noexcept override { return messages_->buffers(); }
  void post(GlobalRank peer, ByteBuffer&& bytes) final;
  void send(std::span<const std::byte> bytes, GlobalRank peer, TransferId id, Token token) final;
  void receive(std::span<std::byte> bytes, GlobalRank peer, TransferId id, Token token) final;
  bool complete() final;
  bool poll() final;
  void check_links() override { messages_->check_links(); }
  bool drained() const noexcept final;
  /// Leaves. Who has come may still be sent something.
  bool leave() final;
  base::Nanoseconds patience(bool unwinding) const noexcept override {
    return messages_->patience(unwinding);
  }
  void give_up(base::Nanoseconds waited, bool unwinding) noexcept override {
    messages_->give_up(waited, unwinding);
  }

 protected:
  struct Transfer {
    NeuronPlace place;
    std::size_t size = 0;
    TransferId id = 0;
    Token token = 0;
  };
  /// What ranks tell each other: a kind, and what it is about.
  struct Message {
    TransferId id = 0;
    std::uint64_t number = 0;  // of kTransfer: its size
  };
  /// Kinds: those of a path begin with kOwn.
  enum : std::uint32_t { kControl, kTransfer, kOwn };

  /// @param messages  whose members are those of this wire
  /// @param places    outlives this
  NeuronWire(std::unique_ptr<Wire> messages, const NeuronPlaces& places);

  Wire& messages() noexcept { return *messages_; }
  /// Ends the other wire, whatever it still does: for destructors that free memory which it uses.
  void drop_messages() noexcept;
  Completions& completions() noexcept { return completions_; }
  void tell(GlobalRank to, std::uint32_t kind, const Message& message);
  void hand_on_control(GlobalRank source, ByteBuffer&& bytes);

  /// A transfer of this rank, of which the receiver is told.
  virtual void on_send(GlobalRank to, const Transfer& transfer) = 0;
  /// A transfer that this rank receives, and `from` sends.
  virtual void on_matched(GlobalRank from, const Transfer& transfer) = 0;
  /// A peer told something of a kind of the path's own. Returns false if it has no such kind.
  virtual bool on_told(GlobalRank source, std::uint32_t kind, const Message& message) = 0;
  /// Control bytes came. Whoever may hand them on only later keeps them, and does it in
  /// hand_on_kept().
  virtual void on_control(GlobalRank source, ByteBuffer&& bytes) {
    hand_on_control(source, std::move(bytes));
  }
  virtual bool hand_on_kept() { return false; }
  /// Bytes that the path sent, or received, over the other wire.
  virtual void on_bytes_sent(Token) {}
  virtual void on_bytes_received(Token) {}
  /// Goes on with what can. Returns true if something moved.
  virtual bool advance() = 0;
  /// Whether it may be left at all.
  virtual bool may_leave() const noexcept { return true; }
  /// Called when all have left: ends the path, once nothing is under way. Returns true when it has.
  virtual bool end() = 0;

 private:
  class Inbox;
  struct Peer {
    std::vector<Transfer> named{};     // of which it has not told
    std::vector<Message> announced{};  // that nobody receives yet
  };

  bool go_on();
  void on_message(GlobalRank source, ByteBuffer&& bytes);
  void on_announced(GlobalRank source, const Message& message);
  void match(GlobalRank from, const Transfer& transfer, std::uint64_t size);
  Peer& peer(GlobalRank rank) { return peers_[static_cast<std::size_t>(members().position(rank))]; }

  std::unique_ptr<Wire> messages_;
  const NeuronPlaces& places_;
  std::unique_ptr<Inbox> inbox_;
  std::vector<Peer> peers_;  // by position; that of this rank is not used
  Completions completions_;
  bool leaving_ = false;
};

}  // namespace smp::d2d
