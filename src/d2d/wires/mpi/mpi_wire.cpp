// d2d/wires/mpi/mpi_wire.cpp: see the header.
#include "d2d/wires/mpi/mpi_wire.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include "alive/transport_call.h"
#include "base/check.h"
#include "base/keep_until_exit.h"

namespace smp::d2d {
namespace {

constexpr int kControlTag = 1;
// Up to here MPI has the whole message when the probe sees it, so that receiving cannot block: Open
// MPI sends 4 KiB at once to a process of the same machine, its own header among them.
constexpr int kReceivedAtOnce = 2048;
// Looking for what others say of their links costs as much as a poll, and has time.
constexpr std::uint32_t kIdlePollsPerLook = 16;

std::uint64_t largest_tag(MPI_Comm ranks) {
  int* bound = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(ranks, MPI_TAG_UB, &bound, &found), "asking for the largest tag");
  return found ? static_cast<std::uint64_t>(*bound) : 32767;  // what the standard promises
}

}  // namespace

MpiWire::MpiWire(MPI_Comm ranks, const Members& members, MpiWireOptions options)
    : Wire(members[MpiCommunicator::rank_in(ranks)], members),
      options_(options),
      control_(MpiCommunicator::duplicate(ranks)),
      data_(MpiCommunicator::duplicate(ranks)),
      links_(ranks, members, options.link_patience),
      tag_bound_(largest_tag(data_.get())),
      exceptions_at_start_(std::uncaught_exceptions()),
      sources_(static_cast<std::size_t>(control_.size())) {
  SMP_ASSERT(control_.size() == this->members().size(), control_.size(), " ranks are called ",
             this->members());
}

// ---- sending ----

void MpiWire::post(GlobalRank peer, ByteBuffer&& bytes) {
  links_.counts(position(peer)).control_sent.count(bytes.size());
  const base::TransportCall calling;
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, position(peer),
                      kControlTag, control_.get(), &request),
            "sending a control frame", peer);
  int left = 0;  // small ones have left already
  check_mpi(MPI_Test(&request, &left, MPI_STATUS_IGNORE), "sending a control frame", peer);
  if (left) {
    buffers_.give(std::move(bytes));
    return;
  }
  requests_.add(request, ControlSend{std::move(bytes)});
  ++sends_in_flight_;
}

void MpiWire::send(std::span<const std::byte> bytes, GlobalRank peer, TransferId id, Token token) {
  ++sends_in_flight_;
  links_.counts(position(peer)).data_sent.count(bytes.size());
  const std::uint64_t transfer = transfers_.put({true, position(peer), bytes.size(), token, 0});
  const int tag = static_cast<int>(id % tag_bound_);
  auto* const start = const_cast<std::byte*>(bytes.data());  // MPI only reads it
  const base::TransportCall calling;
  start_chunks({start, bytes.size()}, transfer, [&](void* chunk, int size, MPI_Request* request) {
    check_mpi(MPI_Isend(chunk, size, MPI_BYTE, position(peer), tag, data_.get(), request),
              "sending a tensor", peer);
  });
}

// Messages of one tag between two ranks keep their order, so all chunks carry the same one.
template <class Start>
void MpiWire::start_chunks(std::span<std::byte> bytes, std::uint64_t transfer, Start&& start) {
  while (!bytes.empty()) {
    const std::size_t size = std::min(bytes.size(), options_.chunk_bytes);
    MPI_Request request = MPI_REQUEST_NULL;
    start(bytes.data(), static_cast<int>(size), &request);
    ++transfers_[transfer].missing;
    requests_.add(request, Chunk{transfer});
    bytes = bytes.subspan(size);
  }
}

void MpiWire::on_complete(ControlSend&& send) {
  --sends_in_flight_;
  buffers_.give(std::move(send.bytes));
}

void MpiWire::on_complete(Chunk&& chunk) {
  if (--transfers_[chunk.transfer].missing > 0) return;
  const DataTransfer transfer = transfers_.take(chunk.transfer);
  if (transfer.sending) {
    --sends_in_flight_;
    handler().on_sent(transfer.token);
  } else {
    links_.counts(transfer.peer).data_received.count(transfer.bytes);
    handler().on_received(transfer.token);
  }
}

// ---- receiving ----

void MpiWire::receive(std::span<std::byte> bytes, GlobalRank peer, TransferId id, Token token) {
  const std::uint64_t transfer = transfers_.put({false, position(peer), bytes.size(), token, 0});
  const int tag = static_cast<int>(id % tag_bound_);
  start_chunks(bytes, transfer, [&](void* chunk, int size, MPI_Request* request) {
    check_mpi(MPI_Irecv(chunk, size, MPI_BYTE, position(peer), tag, data_.get(), request),
              "receiving a tensor", peer);
  });
}

bool MpiWire::complete() {
  return requests_.test_all([this](Request&& request) { finish(std::move(request)); });
}

void MpiWire::finish(Request&& request) {
  std::visit([this](auto&& kind) { on_complete(std::move(kind)); }, std::move(request));
}

// Of many transfers a window at a time, so that control bytes are looked for between them.
bool MpiWire::poll() {
  // Whoever is handed what has come may send, and is not expected to be long.
  const base::TransportCall calling;
  bool moved = requests_.test([this](Request&& request) { finish(std::move(request)); });
  moved |= receive_control();
  while (!readable_.empty()) {
    const int source = readable_.back();
    readable_.pop_back();
    hand_on_complete(source);
    moved = true;
  }
  if (!moved && ++idle_polls_ % kIdlePollsPerLook == 0) links_.poll();
  return moved;
}

bool MpiWire::receive_control() {
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  check_mpi(MPI_Improbe(MPI_ANY_SOURCE, kControlTag, control_.get(), &found, &message, &status),
            "looking for control frames");
  if (!found) return false;
  int bytes = 0;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "receiving a control frame",
            members()[status.MPI_SOURCE]);
  start_control(status.MPI_SOURCE, bytes, message);
  return true;
}

void MpiWire::start_control(int source, int bytes, MPI_Message message) {
  Source& from = sources_[static_cast<std::size_t>(source)];
  const std::uint64_t number = from.probed++;
  ByteBuffer control = buffers_.take();
  control.resize(static_cast<std::size_t>(bytes));
  if (bytes <= kReceivedAtOnce && from.arriving.pass(number)) {
    check_mpi(MPI_Mrecv(control.data(), bytes, MPI_BYTE, &message, MPI_STATUS_IGNORE),
              "receiving a control frame", members()[source]);
    complete();
    hand_on(source, std::move(control));
    return;
  }
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Imrecv(control.data(), bytes, MPI_BYTE, &message, &request),
            "receiving a control frame", members()[source]);
  requests_.add(request, ControlReceive{source, number, std::move(control)});
}

// Not handed on here: complete() reports transfers only.
void MpiWire::on_complete(ControlReceive&& receive) {
  InOrder<ByteBuffer>& arriving = sources_[static_cast<std::size_t>(receive.source)].arriving;
  SMP_ASSERT(arriving.put(receive.number, std::move(receive.bytes)));
  readable_.push_back(receive.source);
}

// Keeps the order of control bytes from one source: small ones may have overtaken large ones.
void MpiWire::hand_on_complete(int source) {
  InOrder<ByteBuffer>& arriving = sources_[static_cast<std::size_t>(source)].arriving;
  while (auto control = arriving.take()) {
    complete();
    hand_on(source, std::move(*control));
  }
}

void MpiWire::hand_on(int source, ByteBuffer&& control) {
  links_.counts(source).control_received.count(control.size());
  handler().on_control(members()[source], std::move(control));
}

// ---- leaving ----

MpiWire::~MpiWire() {
  const bool unwinding = std::uncaught_exceptions() > exceptions_at_start_;
  const base::Nanoseconds deadline = patience(unwinding);
  if (deadline == 0) return;
  set_handler(nullptr);
  try {
    if (close(deadline)) return;
  } catch (const PeerLostError& error) {
    std::fprintf(stderr, "smp: rank %d: %s\n", rank().value(), error.what());
  }
  give_up(deadline, unwinding);
}

bool MpiWire::leave() {
  if (closed_) return true;
  if (!drained() || !links_.drained()) return false;
  if (!leaving_) leaving_.emplace(control_);
  closed_ = requests_.empty() && leaving_->complete();
  return closed_;
}

base::Nanoseconds MpiWire::patience(bool unwinding) const noexcept {
  int over = 0;
  MPI_Finalized(&over);
  if (closed_ || over || job_ends_at_exit()) return 0;
  return unwinding ? options_.unwind_deadline : options_.leave_deadline;
}

void MpiWire::give_up(base::Nanoseconds waited, bool unwinding) noexcept {
  if (std::exchange(closed_, true)) return;
  // Another wire has said it, or the failure of this one was told.
  if (!job_ends_at_exit() && waited > 0) {
    std::fprintf(stderr,
                 "smp: rank %d leaves its transport%s, and not all other ranks came along within "
                 "%lld s: ending the whole job.\n",
                 rank().value(), unwinding ? " because of an exception" : "",
                 static_cast<long long>(waited / base::kSecond));
    std::fflush(stderr);
  }
  if (!unwinding) abort_mpi(control_.get(), 1);
  // Until the process exits MPI may still write to what it was given: it is never freed.
  base::keep_until_exit(std::move(requests_));
  end_job_at_exit();
}

}  // namespace smp::d2d
