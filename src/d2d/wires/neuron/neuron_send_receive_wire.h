// d2d/wires/neuron/neuron_send_receive_wire.h: tensors between Neuron cores by the runtime's
// asynchronous send and receive. Threads: the rank's thread only; nothing here blocks.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "d2d/wire/wire.h"
#include "d2d/wires/completions.h"
#include "d2d/wires/neuron/neuron_places.h"
#include "d2d/wires/neuron/neuron_send_receive.h"

namespace smp::d2d {

struct NeuronSendReceiveOptions {
  /// Transfers from one rank to another at a time, if the runtime allows as many. Nobody says in
  /// which order a communicator serves several; one has no order.
  int at_once = 1;
  base::Nanoseconds connect_patience = 60 * base::kSecond;
  base::Nanoseconds transfer_patience = 120 * base::kSecond;
};

/// A sender tells of a transfer; the receiver posts its receive, and then tells the sender the
/// number of that receive on their communicator; the sender posts in the order of these numbers.
/// So requests of both sides match, though the interface has no tags. A receive that has ended
/// counts after the next flush: until then its bytes may not be in memory. Then the sender is told,
/// and hands on no control bytes of that peer before it has seen the end of its own request: an
/// answer tells that what it answers has left.
///
/// What ranks tell each other, and control bytes, travel over another wire.
class NeuronSendReceiveWire final : public Wire {
 public:
  /// @param messages  whose members are those of this wire
  /// @param core      of this rank, for all other members
  /// @param places    outlives this
  NeuronSendReceiveWire(std::unique_ptr<Wire> messages, std::unique_ptr<NeuronSendReceive> core,
                        const NeuronPlaces& places, const NeuronSendReceiveOptions& options = {});
  ~NeuronSendReceiveWire() override;

  /// Begins to connect, before anything is sent; polls go on with it.
  /// @param cores  of all members, by position
  void connect(const std::vector<NeuronAddress>& cores);

  const char* name() const noexcept override { return "neuron_send_receive"; }
  bool reaches(MemoryKind kind) const noexcept override { return kind == MemoryKind::kNeuron; }
  using Wire::reaches;
  BufferPool& buffers() noexcept override { return messages_->buffers(); }
  void post(GlobalRank peer, ByteBuffer&& bytes) override;
  void send(std::span<const std::byte> bytes, GlobalRank peer, TransferId id, Token token) override;
  void receive(std::span<std::byte> bytes, GlobalRank peer, TransferId id, Token token) override;
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
  enum class MessageKind : std::uint32_t { kControl, kTransfer, kPosted, kArrived };
  struct Message {
    TransferId id = 0;
    std::uint64_t number = 0;  // kTransfer: its size; kPosted, kArrived: of the receive
  };
  struct Transfer {
    NeuronPlace place;
    std::size_t size = 0;
    TransferId id = 0;
    Token token = 0;
    NeuronSendReceive::Request request = nullptr;
    base::Nanoseconds posted = 0;
    std::uint64_t number = 0;  // of the request on its way
  };
  struct Way {  // to a peer, or from it
    NeuronSendReceive::Communicator communicator = nullptr;
    bool is_connected = false;
    std::uint64_t posted = 0;         // requests so far
    std::vector<Transfer> named{};    // of which the other side has not heard, or has not told
    std::deque<Transfer> ready{};     // to be posted, in this order
    std::vector<Transfer> pending{};  // posted
  };
  struct Peer {
    Way out{}, in{};
    std::vector<Message> announced{};  // that nobody receives yet
    std::uint64_t arrived = 0;         // transfers that are there, as the peer says
    std::deque<ByteBuffer> held{};     // control bytes that came before the end of such a transfer
    std::string name{};
  };
  struct Unflushed {
    GlobalRank from;
    Token token = 0;
    Message message{};
  };
  class Inbox;

  Peer& peer(GlobalRank rank) { return peers_[static_cast<std::size_t>(members().position(rank))]; }
  static NeuronDoing doing(const char* what, const Transfer& transfer, const Peer& with) {
    return {what, with.name, transfer.size, transfer.id};
  }
  void tell(GlobalRank to, MessageKind kind, const Message& message);
  void on_message(GlobalRank source, ByteBuffer&& bytes);
  void on_announced(GlobalRank source, const Message& message);
  void on_posted(GlobalRank source, const Message& message);
  void announce(Peer& from, const Transfer& transfer, std::uint64_t size);
  bool test_connections();
  bool post_receives(GlobalRank rank, Peer& from);
  bool post_sends(Peer& to);
  bool end_sends(Peer& to);
  bool end_receives(GlobalRank rank, Peer& from);
  void flush();
  bool is_behind(const Peer& to) const noexcept;
  bool hand_on_held();
  bool may_post(const Way& way) const noexcept;
  bool advance();

  std::unique_ptr<Wire> messages_;
  const NeuronPlaces& places_;
  NeuronSendReceiveOptions options_;
  std::unique_ptr<NeuronSendReceive> core_;
  std::unique_ptr<Inbox> inbox_;
  std::vector<Peer> peers_;  // by position; that of this rank is not used
  base::SteadyClock clock_;
  base::Nanoseconds connect_until_ = 0;
  std::size_t unconnected_ = 0;       // ways
  std::size_t under_way_ = 0;         // requests, and receives that are not flushed
  std::vector<Unflushed> unflushed_;  // receives that have ended
  Completions completions_;
  bool leaving_ = false;
};

}  // namespace smp::d2d
