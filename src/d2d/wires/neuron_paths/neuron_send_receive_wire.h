// d2d/wires/neuron_paths/neuron_send_receive_wire.h: tensors between Neuron cores by the runtime's
// asynchronous send and receive. Threads: the rank's thread only; nothing here blocks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "d2d/wires/fifo.h"
#include "d2d/wires/neuron/neuron_send_receive.h"
#include "d2d/wires/neuron_paths/neuron_wire.h"

namespace smp::d2d {

struct NeuronSendReceiveOptions {
  /// Transfers from one rank to another at a time, if the runtime allows as many. Nobody says in
  /// which order a communicator serves several; one has no order.
  int at_once = 1;
  base::Nanoseconds connect_patience = 60 * base::kSecond;
  base::Nanoseconds transfer_patience = 120 * base::kSecond;
};

/// Of a transfer that both sides have named the receiver posts its receive, and then tells the
/// sender the number of that receive on their communicator; the sender posts in the order of these
/// numbers. So requests of both sides match, though the interface has no tags. A receive that has
/// ended counts after the next flush: until then its bytes may not be in memory. Then the sender is
/// told, and hands on no control bytes of that peer before it has seen the end of its own request:
/// an answer tells that what it answers has left.
class NeuronSendReceiveWire final : public NeuronWire {
 public:
  /// @param messages  whose members are those of this wire
  /// @param core      of this rank, for all other members
  /// @param places    outlives this
  NeuronSendReceiveWire(std::unique_ptr<Wire> messages, std::unique_ptr<NeuronSendReceive> core,
                        const NeuronPlaces& places, const NeuronSendReceiveOptions& options = {});

  /// Begins to connect, before anything is sent; polls go on with it.
  /// @param cores  of all members, by position
  void connect(const std::vector<NeuronAddress>& cores);

  const char* name() const noexcept override { return "neuron_send_receive"; }

 private:
  /// Their number is that of the receive.
  enum : std::uint32_t { kPosted = kOwn, kArrived };
  struct Moving : Transfer {
    NeuronSendReceive::Request request = nullptr;
    base::Nanoseconds posted = 0;  // of a send: a receive waits for its sender
    std::uint64_t number = 0;      // of the request on its way
  };
  struct Way {  // to a peer, or from it
    NeuronSendReceive::Communicator communicator = nullptr;
    bool is_connected = false;
    std::uint64_t posted = 0;       // requests so far
    Fifo<Transfer> ready{};         // to be posted, in this order
    std::vector<Moving> pending{};  // posted
  };
  struct Peer {
    Way out{}, in{};
    std::vector<Transfer> named{};  // sends that it does not receive yet
    std::uint64_t arrived = 0;      // transfers that are there, as the peer says
    Fifo<ByteBuffer> held{};        // control bytes that came before the end of such a transfer
    std::string name{};
  };
  struct Unflushed {
    GlobalRank from;
    Token token = 0;
    Message message{};
  };

  Peer& peer(GlobalRank rank) { return peers_[static_cast<std::size_t>(members().position(rank))]; }
  static NeuronDoing doing(const char* what, const Transfer& transfer, const Peer& with) {
    return {what, with.name, transfer.size, transfer.id};
  }
  void on_send(GlobalRank to, const Transfer& transfer) override;
  void on_matched(GlobalRank from, const Transfer& transfer) override;
  bool on_told(GlobalRank source, std::uint32_t kind, const Message& message) override;
  void on_control(GlobalRank source, ByteBuffer&& bytes) override;
  bool hand_on_kept() override;
  bool advance() override;
  bool may_leave() const noexcept override { return unconnected_ == 0; }
  bool end() override;
  void on_posted(GlobalRank source, const Message& message);
  bool test_connections();
  bool post_receives(GlobalRank rank, Peer& from);
  bool post_sends(Peer& to);
  bool end_sends(Peer& to);
  bool end_receives(GlobalRank rank, Peer& from);
  void flush();
  bool is_behind(const Peer& to) const noexcept;
  bool may_post(const Way& way) const noexcept;

  NeuronSendReceiveOptions options_;
  std::unique_ptr<NeuronSendReceive> core_;
  std::vector<Peer> peers_;  // by position; that of this rank is not used
  base::SteadyClock clock_;
  base::Nanoseconds connect_until_ = 0;
  std::size_t unconnected_ = 0;       // ways
  std::size_t under_way_ = 0;         // requests, and receives that are not flushed
  std::size_t held_ = 0;              // control bytes of all peers
  std::vector<Unflushed> unflushed_;  // receives that have ended
};

}  // namespace smp::d2d
