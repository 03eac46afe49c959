// d2d/wire/wire.h: the bytes of one path between ranks: small control messages in order, and bulk
// data on demand. Paper: §6, App. G. Threads: the rank's, and d2d/channel/progress_thread.h's, one
// at a time; nothing here suspends a fiber.
#pragma once

#include <c10/core/DeviceType.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/machine/doorbell.h"
#include "d2d/wire/byte_buffer.h"
#include "d2d/wire/members.h"
#include "smp/rank.h"

namespace smp::d2d {

/// The kind of memory that bytes of the data plane lie in.
enum class MemoryKind : std::uint8_t { kHost, kCuda, kNeuron };
inline constexpr std::size_t kMemoryKinds = 3;
/// Returns the kind of memory on `device`; nothing: no wire reaches any such memory. LibTorch's
/// private-use device is kNeuron once it is named "neuron".
std::optional<MemoryKind> memory_kind(c10::DeviceType device) noexcept;

/// The wires for data, by MemoryKind, each by its number in the list that all ranks have.
using DataWires = std::array<std::uint8_t, kMemoryKinds>;
/// The number that stands for no wire.
inline constexpr std::uint8_t kNoWire = 0xff;
inline constexpr DataWires kNoDataWires{kNoWire, kNoWire, kNoWire};

/// The sender's number of a data transfer. Both sides name it; a sender uses none twice.
using TransferId = std::uint64_t;
/// The caller's name for a transfer, which he is told when it is complete; means nothing to the
/// wire.
using Token = std::uint64_t;

/// Is told what a wire moved. Called from complete() and poll() only; may post and start transfers,
/// but neither poll nor suspend.
class WireHandler {
 public:
  /// Takes control bytes, in the order `source` posted them. Give the buffer back to the wire's
  /// pool.
  virtual void on_control(GlobalRank source, ByteBuffer&& bytes) = 0;
  /// Tells that the bytes of this send() have left: they may be changed and freed.
  virtual void on_sent(Token token) = 0;
  /// Tells that the bytes of this receive() are there.
  virtual void on_received(Token token) = 0;

 protected:
  ~WireHandler() = default;
};

/// One path between this rank and the other members. Control bytes keep their order for each
/// ordered pair of ranks; data transfers have none, and wait for nobody: the receiver learns from
/// control bytes what will come.
/// Every implementation passes tests/d2d/wire/wire_contract.h, and under a Channel
/// channel_contract.h.
class Wire {
 public:
  virtual ~Wire() = default;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  /// Returns the name for messages, as in "mpi".
  virtual const char* name() const noexcept = 0;
  GlobalRank rank() const noexcept { return rank_; }
  const Members& members() const noexcept { return members_; }
  bool reaches(GlobalRank peer) const noexcept { return peer != rank_ && members_.contain(peer); }
  /// True if send() and receive() take bytes that lie there.
  virtual bool reaches(MemoryKind kind) const noexcept { return kind == MemoryKind::kHost; }
  /// True if complete() and poll(), and the receive() they lead to, may be called on other threads
  /// than the rank's while that calls nothing here.
  virtual bool takes_other_threads() const noexcept { return false; }

  /// Sets the handler, which outlives its use; nullptr: what arrives is lost.
  void set_handler(WireHandler* handler) noexcept;
  /// Returns the pool that buffers to post come from, and that received ones go to.
  virtual BufferPool& buffers() noexcept = 0;

  /// Sends control bytes to `peer`, which must be reached.
  /// @throws PeerLostError  the path is broken; so do send() and receive().
  virtual void post(GlobalRank peer, ByteBuffer&& bytes) = 0;
  /// Starts to send `bytes` (at least one), which stay as they are until on_sent(`token`).
  virtual void send(std::span<const std::byte> bytes, GlobalRank peer, TransferId id,
                    Token token) = 0;
  /// Starts to receive what `peer` sends as `id`, of the same size, until on_received(`token`).
  virtual void receive(std::span<std::byte> bytes, GlobalRank peer, TransferId id, Token token) = 0;

  /// Reports every transfer that is complete. Returns true if there was one.
  virtual bool complete() = 0;
  /// Does the work of complete(), then hands on control bytes that are there, at least one message.
  /// Returns true if anything moved. Before each message complete transfers are reported: an answer
  /// tells that what it answers has left.
  /// @throws PeerLostError  the path is broken.
  virtual bool poll() = 0;
  /// True if bytes have moved since the last call, also of transfers that are not complete yet.
  bool take_stir() noexcept { return std::exchange(stirs_, false); }
  /// Starts to compare with every peer what was sent and what has arrived. To be called again and
  /// again while nothing moves. If something is lost, a poll() some seconds later throws.
  virtual void check_links() {}
  /// Returns the doorbell at which this rank may sleep while a poll() would find nothing: whoever
  /// has something for it rings. nullptr: nobody can.
  virtual base::Doorbell* doorbell() noexcept { return nullptr; }
  /// True if nothing that this rank posted or sends is in flight.
  virtual bool drained() const noexcept = 0;

  /// Attempts once to leave together with all other members, after the last post and send. Returns
  /// true once all have come and nothing is in flight; until then poll on and ask again.
  virtual bool leave() = 0;
  /// Returns how long a destructor waits for the others; 0: there is nobody to wait for.
  virtual base::Nanoseconds patience(bool /*unwinding*/) const noexcept { return 0; }
  /// Ends the whole job because the others did not come within `waited` (0: they could not). While
  /// an exception unwinds, the job ends only when the process exits, so that it can be reported.
  virtual void give_up(base::Nanoseconds /*waited*/, bool /*unwinding*/) noexcept {}

  /// Leaves, and polls meanwhile. Returns false if the others did not come within `deadline`: call
  /// it again, or give_up().
  bool close(base::Nanoseconds deadline);

 protected:
  Wire(GlobalRank rank, Members members);
  WireHandler& handler() const noexcept { return *handler_; }
  void note_stir() noexcept { stirs_ = true; }

 private:
  GlobalRank rank_;
  Members members_;
  WireHandler* handler_;
  bool stirs_ = false;
};

/// Waits without using up the core: give way first, then sleep 100 us a time.
void wait_politely(int idle_rounds) noexcept;

}  // namespace smp::d2d
