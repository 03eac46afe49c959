// d2d/wires/local/local_wire.h: bytes between ranks that share one OS thread. Threads: one.
#pragma once

#include <memory>

#include "d2d/wire/wire.h"
#include "d2d/wires/local/local_hub.h"

namespace smp::d2d {

/// One rank's end. Bytes are copied when they are sent: ranks never share storage. A send has left
/// when it has arrived, so that a change in between is noticed as on a real wire.
class LocalWire final : public Wire {
 public:
  /// Makes a wire to all ranks of the hub.
  LocalWire(std::shared_ptr<LocalHub> hub, GlobalRank rank);
  /// Makes a wire to `members`, each of which names the same in the same order. The n-th wires that
  /// the members open belong together, and have a message space of their own.
  /// @throws UsageError  a member is not in the hub, or this rank is not a member.
  LocalWire(std::shared_ptr<LocalHub> hub, GlobalRank rank, Members members);
  ~LocalWire() override;

  const char* name() const noexcept override { return "local"; }
  BufferPool& buffers() noexcept override { return hub_->buffers_; }
  void post(GlobalRank peer, ByteBuffer&& bytes) override;
  void send(std::span<const std::byte> bytes, GlobalRank peer, TransferId id, Token token) override;
  void receive(std::span<std::byte> bytes, GlobalRank peer, TransferId id, Token token) override;
  bool complete() override;
  bool poll() override;
  bool drained() const noexcept override { return own().in_flight == 0; }
  /// Leaves at once, without waiting: the hub keeps what is on its way.
  bool leave() override;

 private:
  using Space = LocalHub::Space;
  LocalHub::End& own() const noexcept { return space_->end(position_); }
  template <class Message>
  void carry(base::Nanoseconds arrival, int destination, Message&& message);
  void hand_over(const LocalHub::Transfer& transfer);
  void close_end() noexcept;

  std::shared_ptr<LocalHub> hub_;
  std::shared_ptr<Space> space_;
  int position_;
};

}  // namespace smp::d2d
