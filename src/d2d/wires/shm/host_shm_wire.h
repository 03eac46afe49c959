// d2d/wires/shm/host_shm_wire.h: bytes between processes of one machine, through memory that they
// share. Paper: §6, App. G.2. Threads: one at a time; nothing here blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "base/memory/shared_memory.h"
#include "d2d/wire/wire.h"
#include "d2d/wires/completions.h"
#include "d2d/wires/shm/host_shm_segment.h"
#include "d2d/wires/shm/shm_blocks.h"
#include "d2d/wires/shm/shm_losses.h"
#include "d2d/wires/shm/shm_ring.h"

namespace smp::d2d {

/// The processes of the members of a wire, by position.
struct HostShmProcesses {
  std::vector<std::int64_t> numbers = {};  ///< none: they are not known
  bool may_read_each_other = false;        ///< memory, each that of all others
};

/// Every rank sends through a segment of its own, which all others map. Control bytes are records
/// in the ring to a peer. Data is copied into free blocks, piece by piece, and a record tells
/// which; the receiver copies each piece to its place as soon as it is known, and gives the block
/// back. So what is large is written and read at the same time, and no piece waits for another:
/// whoever has no place yet leaves the pieces where they are, and a sender who finds no free block
/// or no room in a ring goes on when he polls next. Receivers learn of their places from control
/// bytes, which need no blocks, so blocks always come back.
///
/// Where processes may read each other's memory, large data is not copied into blocks: the record
/// tells where it lies, the receiver fetches it from there, and the block of the record, left
/// empty, tells the sender when that is done.
///
/// The kernel tells when a peer's process ends (alive/process_watch.h). One that has not left is
/// lost then: once all that it sent was read, poll() throws; while this rank leaves, leave() does,
/// if nobody has ended the job meanwhile (HostShmOptions::launcher_patience).
class HostShmWire final : public Wire {
 public:
  /// @param segments   of each member, by position, of
  ///                   HostShmSegment::bytes_for(members.size(), options)
  /// @param beside     outlives this; its doorbells are rung: a rank sleeps at one
  HostShmWire(GlobalRank rank, Members members, std::vector<base::SharedMemory> segments,
              const HostShmOptions& options = {}, HostShmProcesses processes = {},
              const HostShmWire* beside = nullptr);

  const char* name() const noexcept override { return "host_shm"; }
  bool takes_other_threads() const noexcept override { return true; }
  BufferPool& buffers() noexcept override { return buffers_; }
  void post(GlobalRank peer, ByteBuffer&& bytes) override;
  void send(std::span<const std::byte> bytes, GlobalRank peer, TransferId id, Token token) override;
  void receive(std::span<std::byte> bytes, GlobalRank peer, TransferId id, Token token) override;
  bool complete() override;
  bool poll() override;
  base::Doorbell* doorbell() noexcept override { return &doorbell_; }
  bool drained() const noexcept override { return waiting_ == 0 && completions_.sends() == 0; }
  bool leave() override;

 private:
  struct Piece {  // of a transfer, as its record tells it
    TransferId id = 0;
    std::uint64_t offset = 0;
    std::uint32_t block = 0;
    std::uint32_t size = 0;
  };
  struct Offer {  // of a whole transfer, as its record tells it
    TransferId id = 0;
    std::uint64_t address = 0;
    std::uint64_t size = 0;
    std::uint64_t block = 0;
  };
  struct Posted {  // a receive
    TransferId id = 0;
    std::span<std::byte> bytes;
    Token token = 0;
    std::size_t missing = 0;
  };
  struct ControlToSend {
    ByteBuffer bytes;
    std::size_t done = 0;
  };
  struct DataToSend {
    std::span<const std::byte> bytes;
    TransferId id = 0;
    Token token = 0;
    std::size_t done = 0;
  };
  struct Peer {
    ShmRingWriter out;
    ShmRingReader in;
    std::size_t position;
    base::Doorbell doorbell;              // of the peer, rung after whatever it may wait for
    std::deque<ControlToSend> control{};  // not in the ring yet
    std::deque<DataToSend> data{};        // not in blocks yet, or not all of it
    std::vector<std::byte> arriving{};    // control bytes that came in part
    std::vector<Posted> receives{};
    std::vector<Piece> pieces{};  // that nobody receives yet
    std::vector<Offer> offers{};
  };

  base::Doorbell doorbell_of(int position, const HostShmWire* beside) const noexcept;
  static void commit(Peer& to, std::uint32_t kind) noexcept;
  void give_back(int source, std::uint32_t block) noexcept;
  Peer& peer(GlobalRank rank) { return peers_[static_cast<std::size_t>(members().position(rank))]; }
  bool send_control(Peer& to, ControlToSend& control);
  bool send_data(Peer& to, DataToSend& data);
  bool offer(Peer& to, const DataToSend& data);
  bool send_waiting();
  bool read_from(int source);
  void read(int source, const ShmRing::Record& record);
  void hand_on(int source, std::span<const std::byte> last_part);
  void on_piece(int source, const Piece& piece);
  void copy_out(int source, Posted& posted, const Piece& piece);
  void on_offer(int source, const Offer& offer);
  void fetch(int source, const Posted& posted, const Offer& offer);
  void require_no_loss();

  HostShmOptions options_;
  HostShmProcesses processes_;
  std::vector<HostShmSegment> segments_;  // by position
  int position_;
  base::Doorbell doorbell_;
  BufferPool buffers_;
  std::deque<Peer> peers_;         // by position; that of this rank is not used
  std::size_t first_to_send_ = 0;  // position, among those for whom something waits
  ShmBlocks blocks_;
  std::size_t waiting_ = 0;  // in the queues of all peers
  Completions completions_;
  bool leaving_ = false;
  ShmLosses losses_;
};

}  // namespace smp::d2d
