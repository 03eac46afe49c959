// d2d/mpi_transport.cpp: see the header.
#include "d2d/mpi_transport.h"

#include <cstdio>
#include <exception>
#include <utility>

#include "base/check.h"

namespace smp::d2d {
namespace {

constexpr int kControlTag = 1;
// Up to here MPI has the whole message when the probe sees it, so that receiving cannot block.
constexpr int kReceivedAtOnce = 4096;

std::uint64_t tag_bound(MPI_Comm ranks) {
  int* bound = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(ranks, MPI_TAG_UB, &bound, &found), "asking for the largest tag");
  return found ? static_cast<std::uint64_t>(*bound) : 32767;  // what the standard promises
}

// Inference tensors have no version counter.
std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version());
}

}  // namespace

MpiTransport::MpiTransport(MPI_Comm ranks, MpiTransportOptions options)
    : options_(options),
      control_(MpiCommunicator::duplicate(ranks)),
      data_(MpiCommunicator::duplicate(ranks)),
      rank_(control_.rank()),
      size_(control_.size()),
      tag_bound_(tag_bound(data_.get())),
      exceptions_at_start_(std::uncaught_exceptions()),
      arriving_(size_) {}

MpiTransport::~MpiTransport() {
  int over = 0;
  MPI_Finalized(&over);
  if (closed_ || over || job_ends_at_exit()) return;
  const bool unwinding = std::uncaught_exceptions() > exceptions_at_start_;
  const base::Nanoseconds deadline =
      unwinding || failed_ ? options_.unwind_deadline : options_.leave_deadline;
  if (!close(deadline)) end_job(deadline, unwinding);
}

// ---- sending ----

void MpiTransport::send(int peer, Frame frame) {
  SMP_REQUIRE(peer >= 0 && peer < size_ && peer != rank_, "rank ", rank_, ": sending to rank ",
              peer, " of ", size_, ": it must be another rank of this transport.");
  SMP_REQUIRE(!closed_, "rank ", rank_, ": sending to rank ", peer,
              ": this transport was closed before; send before closing.");
  SMP_REQUIRE_AS(PeerLostError, !failed_, "rank ", rank_, ": sending to rank ", peer,
                 ": the transport has failed before; restart from a checkpoint.");
  ByteBuffer control = buffers_.take();
  codec_.encode(frame, next_transfer_, control, data_tensors_);
  ++counters_.frames_sent;
  counters_.header_bytes_sent += frame.header.size();
  for (const at::Tensor& tensor : frame.tensors) {
    if (tensor.defined()) counters_.tensor_bytes_sent += tensor.nbytes();
  }
  send_control(peer, std::move(control));
  for (const DataTensor& data : data_tensors_) {
    send_tensor(peer, frame.tensors[data.index], data);
  }
  data_tensors_.clear();
}

void MpiTransport::send_control(int peer, ByteBuffer&& control) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Isend(control.data(), static_cast<int>(control.size()), MPI_BYTE, peer, kControlTag,
                      control_.get(), &request),
            "sending a control frame", peer);
  int left = 0;  // small ones have left already
  check_mpi(MPI_Test(&request, &left, MPI_STATUS_IGNORE), "sending a control frame", peer);
  if (left) {
    buffers_.give(std::move(control));
    return;
  }
  transfers_.add(request, ControlSend{std::move(control)});
  ++sends_in_flight_;
}

void MpiTransport::send_tensor(int peer, const at::Tensor& original, const DataTensor& data) {
  auto departing = std::make_shared<DepartingTensor>(
      DepartingTensor{peer, data.index, original, data.tensor, version_of(original)});
  const int tag = static_cast<int>(data.transfer % tag_bound_);
  for_each_chunk(data.tensor, [&](std::byte* start, int bytes) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Isend(start, bytes, MPI_BYTE, peer, tag, data_.get(), &request),
              "sending a tensor", peer);
    ++departing->missing;
    ++sends_in_flight_;
    transfers_.add(request, DataSend{departing});
  });
}

// Messages of one tag between two ranks keep their order, so all chunks carry the same one.
template <class Post>
void MpiTransport::for_each_chunk(const at::Tensor& tensor, Post&& post) {
  auto* start = static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr()));
  for (std::size_t left = tensor.nbytes(); left > 0;) {
    const std::size_t bytes = std::min(left, options_.chunk_bytes);
    post(start, static_cast<int>(bytes));
    start += bytes;
    left -= bytes;
  }
}

void MpiTransport::on_complete(ControlSend&& send) {
  --sends_in_flight_;
  buffers_.give(std::move(send.bytes));
}

void MpiTransport::on_complete(DataSend&& send) {
  --sends_in_flight_;
  if (--send.tensor->missing == 0) check_unchanged(*send.tensor);
}

void MpiTransport::check_unchanged(const DepartingTensor& tensor) {
  // A copy was sent, so a later change of the original does no harm.
  if (!tensor.elements.is_same(tensor.original)) return;
  const std::uint32_t version = version_of(tensor.original);
  if (version == tensor.version) return;
  fail(base::concat("rank ", rank_, ": tensor ", tensor.index, " ", tensor.original.sizes(),
                    " was changed in place while it was being sent to rank ", tensor.peer,
                    " (version ", tensor.version, " became ", version,
                    "); that rank may have got a mixture. Do not write to a module's inputs and "
                    "outputs after handing them on; clone() first."));
}

// ---- receiving ----

bool MpiTransport::poll() {
  if (polling_ || failed_) return false;
  polling_ = true;
  bool moved = true;
  try {
    moved = advance();
  } catch (const std::exception& error) {
    failed_ = true;
    fail(base::concat("rank ", rank_, ": ", error.what()));
  }
  polling_ = false;
  return moved;
}

bool MpiTransport::advance() {
  const bool completed = complete_transfers();
  return (receiver_ && receive_control()) || completed;
}

bool MpiTransport::complete_transfers() {
  return !transfers_.empty() && transfers_.test([this](Transfer&& transfer) {
    std::visit([this](auto&& kind) { on_complete(std::move(kind)); }, std::move(transfer));
  });
}

bool MpiTransport::receive_control() {
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  check_mpi(MPI_Improbe(MPI_ANY_SOURCE, kControlTag, control_.get(), &found, &message, &status),
            "looking for control frames");
  if (!found) return false;
  int bytes = 0;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "receiving a control frame",
            status.MPI_SOURCE);
  // An answer tells that what it answers has arrived: let go of that first, so that whoever gets
  // the answer may write to it.
  complete_transfers();
  start_control(status.MPI_SOURCE, bytes, message);
  return true;
}

void MpiTransport::start_control(int source, int bytes, MPI_Message message) {
  ByteBuffer control = buffers_.take();
  control.resize(bytes);
  if (bytes <= kReceivedAtOnce && arriving_[source].empty()) {
    check_mpi(MPI_Mrecv(control.data(), bytes, MPI_BYTE, &message, MPI_STATUS_IGNORE),
              "receiving a control frame", source);
    read_control(source, std::move(control));
    return;
  }
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Imrecv(control.data(), bytes, MPI_BYTE, &message, &request),
            "receiving a control frame", source);
  ArrivingControl& arriving = arriving_[source].emplace_back(std::move(control));
  transfers_.add(request, ControlReceive{source, &arriving});
}

void MpiTransport::on_complete(ControlReceive&& receive) {
  receive.control->complete = true;
  read_arrived(receive.source);
}

// Keeps the order of frames from one source: a small one may have overtaken a large one.
void MpiTransport::read_arrived(int source) {
  std::deque<ArrivingControl>& arriving = arriving_[source];
  while (!arriving.empty() && arriving.front().complete) {
    ByteBuffer control = std::move(arriving.front().bytes);
    arriving.pop_front();
    read_control(source, std::move(control));
  }
}

void MpiTransport::read_control(int source, ByteBuffer&& control) {
  Frame frame = codec_.decode(control.span(), data_tensors_);
  buffers_.give(std::move(control));
  if (data_tensors_.empty()) {
    deliver(source, std::move(frame));
  } else {
    post_receives(source, std::move(frame));
  }
}

void MpiTransport::post_receives(int source, Frame&& frame) {
  auto arriving = std::make_shared<ArrivingFrame>(ArrivingFrame{source, std::move(frame)});
  for (const DataTensor& data : data_tensors_) {
    const int tag = static_cast<int>(data.transfer % tag_bound_);
    for_each_chunk(data.tensor, [&](std::byte* start, int bytes) {
      MPI_Request request = MPI_REQUEST_NULL;
      check_mpi(MPI_Irecv(start, bytes, MPI_BYTE, source, tag, data_.get(), &request),
                "receiving a tensor", source);
      ++arriving->missing;
      transfers_.add(request, DataReceive{arriving});
    });
  }
  data_tensors_.clear();
}

void MpiTransport::on_complete(DataReceive&& receive) {
  ArrivingFrame& arriving = *receive.frame;
  if (--arriving.missing == 0) deliver(arriving.source, std::move(arriving.frame));
}

void MpiTransport::deliver(int source, Frame&& frame) {
  ++counters_.frames_received;
  receiver_(source, std::move(frame));
}

void MpiTransport::fail(const std::string& what) {
  if (on_failure_) {
    on_failure_(what);
  } else {
    std::fprintf(stderr, "%s\n", what.c_str());
  }
}

// ---- leaving ----

bool MpiTransport::close(base::Nanoseconds deadline) {
  if (closed_) return true;
  if (failed_) return false;
  const base::SteadyClock clock;
  const base::Nanoseconds end = clock.now() + deadline;
  receiver_ = [](int, Frame&&) {};
  for (int idle = 0; !failed_; ++idle) {
    if (poll()) idle = 0;
    if (!leaving_ && drained()) leaving_.emplace(control_);
    if (leaving_ && transfers_.empty() && leaving_->complete()) break;
    if (clock.now() > end) return false;
    wait_politely(idle);
  }
  closed_ = !failed_;
  return closed_;
}

void MpiTransport::end_job(base::Nanoseconds deadline, bool unwinding) {
  std::fprintf(stderr,
               "smp: rank %d leaves its transport%s, and not all other ranks came along within "
               "%lld s: ending the whole job.\n",
               rank_, unwinding ? " because of an exception" : "",
               static_cast<long long>(deadline / base::kSecond));
  std::fflush(stderr);
  if (!unwinding) MPI_Abort(control_.get(), 1);
  keep_memory_in_flight();
  end_job_at_exit();
}

// Until the process exits MPI may still write to what it was given: it is never freed.
void MpiTransport::keep_memory_in_flight() {
  static_cast<void>(new auto(std::move(transfers_)));
  static_cast<void>(new auto(std::move(arriving_)));
}

}  // namespace smp::d2d
