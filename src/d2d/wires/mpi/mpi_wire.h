// d2d/wires/mpi/mpi_wire.h: bytes over MPI, control and data on communicators of their own.
// Paper: §6, App. G.1. Threads: the thread that started MPI; nothing here blocks but the
// destructor.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "d2d/wire/byte_buffer.h"
#include "d2d/wire/in_order.h"
#include "d2d/wire/slots.h"
#include "d2d/wire/wire.h"
#include "d2d/wires/mpi/mpi_communicator.h"
#include "d2d/wires/mpi/mpi_links.h"
#include "d2d/wires/mpi/transfer_set.h"

namespace smp::d2d {

struct MpiWireOptions {
  /// The longest message; longer transfers travel as several messages (MPI counts are ints).
  std::size_t chunk_bytes = std::size_t{1} << 30;
  /// The time for which the destructor waits for the other ranks to leave as well, in nanoseconds:
  /// normally long, since one of them may still be writing a checkpoint.
  base::Nanoseconds leave_deadline = 1800 * base::kSecond;
  /// The same time while an exception unwinds: then the others may never come.
  base::Nanoseconds unwind_deadline = 5 * base::kSecond;
  /// The time in which nothing must arrive on a link before what is missing there is lost; the
  /// higher of two ranks waits twice as long.
  base::Nanoseconds link_patience = 5 * base::kSecond;
};

/// A wire over MPI. Control bytes are probed for; data is received straight into its place. All MPI
/// errors are PeerLostErrors.
class MpiWire final : public Wire {
 public:
  /// All ranks of `ranks` call this together; `members` names them in that order.
  MpiWire(MPI_Comm ranks, const Members& members, MpiWireOptions options = {});
  /// Leaves if nobody did; ends the whole job if the other ranks do not come in time.
  ~MpiWire() override;

  const char* name() const noexcept override { return "mpi"; }
  BufferPool& buffers() noexcept override { return buffers_; }
  void post(GlobalRank peer, ByteBuffer&& bytes) override;
  void send(std::span<const std::byte> bytes, GlobalRank peer, TransferId id, Token token) override;
  void receive(std::span<std::byte> bytes, GlobalRank peer, TransferId id, Token token) override;
  bool complete() override;
  bool poll() override;
  void check_links() override { links_.ask(); }
  bool drained() const noexcept override { return sends_in_flight_ == 0; }
  bool leave() override;
  base::Nanoseconds patience(bool unwinding) const noexcept override;
  void give_up(base::Nanoseconds waited, bool unwinding) noexcept override;

 private:
  struct ControlSend {
    ByteBuffer bytes;
  };
  struct ControlReceive {
    int source;
    std::uint64_t number;  // among those of the source
    ByteBuffer bytes;
  };
  struct Chunk {  // of a data transfer
    std::uint64_t transfer;
  };
  using Request = std::variant<ControlSend, ControlReceive, Chunk>;
  struct DataTransfer {
    bool sending = false;
    int peer = 0;  // position
    std::size_t bytes = 0;
    Token token = 0;
    std::size_t missing = 0;  // chunks
  };

  int position(GlobalRank peer) const { return members().position(peer); }
  template <class Start>
  void start_chunks(std::span<std::byte> bytes, std::uint64_t transfer, Start&& start);
  bool receive_control();
  void start_control(int source, int bytes, MPI_Message message);
  void hand_on_complete(int source);
  void hand_on(int source, ByteBuffer&& control);
  void finish(Request&& request);
  void on_complete(ControlSend&& send);
  void on_complete(ControlReceive&& receive);
  void on_complete(Chunk&& chunk);

  MpiWireOptions options_;
  MpiCommunicator control_;
  MpiCommunicator data_;
  MpiLinks links_;
  std::uint64_t tag_bound_;
  int exceptions_at_start_;
  bool closed_ = false;
  std::optional<MpiMeeting> leaving_;  // entered once our sends have left
  BufferPool buffers_;
  std::size_t sends_in_flight_ = 0;
  TransferSet<Request> requests_;
  Slots<DataTransfer> transfers_;
  struct Source {
    std::uint64_t probed = 0;      // control messages that have been found
    InOrder<ByteBuffer> arriving;  // those that are complete
  };
  std::vector<Source> sources_;
  std::vector<int> readable_;  // sources whose bytes are complete
  std::uint32_t idle_polls_ = 0;
};

}  // namespace smp::d2d
