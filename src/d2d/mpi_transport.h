// d2d/mpi_transport.h: frames over MPI, control frames and tensors on communicators of their own.
// Paper: §6, App. G.1. Threads: the thread that started MPI; nothing here blocks but close().
#pragma once

#include <mpi.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "d2d/byte_buffer.h"
#include "d2d/frame_codec.h"
#include "d2d/mpi_communicator.h"
#include "d2d/transfer_set.h"
#include "d2d/transport.h"

namespace smp::d2d {

struct MpiTransportOptions {
  /// Tensors larger than this travel as several messages (MPI counts are ints).
  std::size_t chunk_bytes = std::size_t{1} << 30;
  /// How long the destructor waits for the other ranks to leave as well, in nanoseconds: normally
  /// long, since one of them may still be writing a checkpoint.
  base::Nanoseconds leave_deadline = 1800 * base::kSecond;
  /// The same while an exception unwinds: then the others may never come.
  base::Nanoseconds unwind_deadline = 5 * base::kSecond;
};

/// A control frame is probed for; the receives of its large tensors are posted when it has been
/// read, straight into new tensors; it is delivered when they are full.
class MpiTransport final : public Transport {
 public:
  /// All ranks of `ranks` call this together; the ranks of this transport are those of `ranks`.
  explicit MpiTransport(MPI_Comm ranks, MpiTransportOptions options = {});
  /// Calls close() if nobody did; ends the whole job if the other ranks do not come in time (while
  /// an exception unwinds: when this process exits, so that the exception can be reported).
  ~MpiTransport() override;

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  /// @throws PeerLostError  MPI refused; `peer` or the job is probably gone.
  void send(int peer, Frame frame) override;
  bool poll() override;
  bool drained() const noexcept override { return sends_in_flight_ == 0; }

  /// Leaves together with all other ranks: waits until the sends of all have arrived. Frames that
  /// arrive meanwhile are dropped. False if the others did not come within `deadline`: call it
  /// again, or end the job.
  bool close(base::Nanoseconds deadline);

 private:
  // A control frame that is arriving from one rank, and those behind it.
  struct ArrivingControl {
    ByteBuffer bytes;
    bool complete = false;
  };
  struct ArrivingFrame {
    int source;
    Frame frame;
    std::size_t missing = 0;  // data-plane messages
  };
  struct DepartingTensor {
    int peer;
    std::size_t index;
    at::Tensor original;  // shares its version counter with the sender's
    at::Tensor elements;
    std::uint32_t version;
    std::size_t missing = 0;
  };
  struct ControlSend {
    ByteBuffer bytes;
  };
  struct DataSend {
    std::shared_ptr<DepartingTensor> tensor;
  };
  struct ControlReceive {
    int source;
    ArrivingControl* control;
  };
  struct DataReceive {
    std::shared_ptr<ArrivingFrame> frame;
  };
  using Transfer = std::variant<ControlSend, DataSend, ControlReceive, DataReceive>;

  void send_control(int peer, ByteBuffer&& control);
  void send_tensor(int peer, const at::Tensor& original, const DataTensor& data);
  bool advance();
  bool complete_transfers();
  bool receive_control();
  void start_control(int source, int bytes, MPI_Message message);
  void read_control(int source, ByteBuffer&& control);
  void read_arrived(int source);
  void post_receives(int source, Frame&& frame);
  void deliver(int source, Frame&& frame);
  void on_complete(ControlSend&& send);
  void on_complete(DataSend&& send);
  void on_complete(ControlReceive&& receive);
  void on_complete(DataReceive&& receive);
  void check_unchanged(const DepartingTensor& tensor);
  void fail(const std::string& what);
  void end_job(base::Nanoseconds deadline, bool unwinding);
  void keep_memory_in_flight();
  template <class Post>
  void for_each_chunk(const at::Tensor& tensor, Post&& post);

  MpiTransportOptions options_;
  MpiCommunicator control_;
  MpiCommunicator data_;
  int rank_;
  int size_;
  std::uint64_t tag_bound_;
  int exceptions_at_start_;
  bool failed_ = false;
  bool polling_ = false;
  bool closed_ = false;
  std::optional<MpiMeeting> leaving_;  // entered once our sends have left

  FrameCodec codec_;
  BufferPool buffers_;
  std::vector<DataTensor> data_tensors_;
  std::uint64_t next_transfer_ = 0;
  std::size_t sends_in_flight_ = 0;
  TransferSet<Transfer> transfers_;
  std::vector<std::deque<ArrivingControl>> arriving_;  // by source, oldest first
};

}  // namespace smp::d2d
