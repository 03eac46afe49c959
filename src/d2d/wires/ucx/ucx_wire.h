// d2d/wires/ucx/ucx_wire.h: bytes between machines over UCX: InfiniBand, RoCE, or TCP.
// Paper: §6, App. G.1. Threads: one at a time; nothing here blocks but the destructor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "d2d/wire/byte_buffer.h"
#include "d2d/wire/in_order.h"
#include "d2d/wire/wire.h"
#include "d2d/wires/ucx/ucx_worker.h"

struct ucp_ep;

namespace smp::d2d {

/// A wire over UCX. Every message is matched by its tag: its kind, its sender and, of data, its
/// number. UCX keeps what arrives before it is received: short data in buffers, of long data only
/// the news, so that the receiver's call starts the transfer, straight into its place. Control
/// bytes are probed for; UCX keeps their order. A peer whose connection breaks is lost.
class UcxWire final : public Wire {
 public:
  /// @param addresses  of the workers of all `members`, by position; all construct theirs
  /// @param secret  of the job, part of every tag: messages of those who do not know it are never
  /// looked at
  UcxWire(GlobalRank rank, Members members, std::unique_ptr<UcxWorker> worker,
          const std::vector<std::string>& addresses, std::uint64_t secret = 0);
  ~UcxWire() override;

  const char* name() const noexcept override { return "ucx"; }
  bool takes_other_threads() const noexcept override { return true; }
  BufferPool& buffers() noexcept override { return buffers_; }
  void post(GlobalRank peer, ByteBuffer&& bytes) override;
  void send(std::span<const std::byte> bytes, GlobalRank peer, TransferId id, Token token) override;
  void receive(std::span<std::byte> bytes, GlobalRank peer, TransferId id, Token token) override;
  bool complete() override;
  bool poll() override;
  bool drained() const noexcept override { return sends_in_flight_ == 0; }
  bool leave() override;

 private:
  struct Peer {
    UcxWire* wire = nullptr;
    GlobalRank rank;
    ucp_ep* endpoint = nullptr;
    bool has_left = false;
    std::string loss;              // what happened to its connection, unless it has left
    std::uint64_t probed = 0;      // control messages that have been found
    InOrder<ByteBuffer> arriving;  // those that are complete
  };
  enum class Kind : std::uint8_t { kControlSend, kSend, kReceive, kControlReceive, kFlush };
  struct Operation {  // that UCX was given
    UcxWire* wire = nullptr;
    Peer* peer = nullptr;
    Kind kind = Kind::kSend;
    Token token = 0;
    std::size_t bytes = 0;
    ByteBuffer control;
    std::uint64_t number = 0;  // kControlReceive: among those of the peer
    int status = 0;
  };

  struct Callbacks;  // what UCX calls

  Peer& peer(GlobalRank rank) {
    return *peers_[static_cast<std::size_t>(members().position(rank))];
  }
  void connect(Peer& peer, const std::string& address);
  void disconnect() noexcept;
  Operation& make(Kind kind, Peer& peer, Token token, std::size_t bytes);
  template <class Start>
  void start(Operation& operation, Start&& start);
  void send_tagged(std::span<const std::byte> bytes, std::uint64_t tag, Operation& operation);
  void finish(Operation& operation);
  static std::string loss_of(const Operation& operation);
  void lose(Peer& peer, const std::string& what);
  void require_no_loss();
  Peer& sender_of(std::uint64_t tag, std::size_t bytes);
  bool receive_control();
  void hand_on_complete(Peer& source);
  void take_goodbyes();

  std::unique_ptr<UcxWorker> worker_;
  const std::uint64_t secret_;
  BufferPool buffers_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by position; that of this rank has no endpoint
  std::vector<std::unique_ptr<Operation>> operations_;
  std::vector<Operation*> free_;
  std::vector<Operation*> done_;  // not reported yet
  std::vector<Operation*> reporting_;
  std::vector<Peer*> readable_;  // whose control bytes are complete
  std::size_t sends_in_flight_ = 0;
  std::size_t flushes_in_flight_ = 0;
  bool any_loss_ = false;
  enum class Leaving : std::uint8_t { kNo, kWaiting, kFlushing, kLeft } leaving_ = Leaving::kNo;
};

}  // namespace smp::d2d
