// d2d/wires/cuda/cuda_ipc_wire.cpp: see the header.
#include "d2d/wires/cuda/cuda_ipc_wire.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "d2d/wires/labelled_bytes.h"
#include "smp/error.h"

namespace smp::d2d {

/// Takes what comes over the other wire.
class CudaIpcWire::Inbox final : public WireHandler {
 public:
  explicit Inbox(CudaIpcWire& wire) : wire_(wire) {}
  void on_control(GlobalRank source, ByteBuffer&& bytes) override {
    wire_.on_message(source, std::move(bytes));
  }
  void on_sent(Token) override {}
  void on_received(Token) override {}

 private:
  CudaIpcWire& wire_;
};

// ---- connecting --------------------------------------------------------------------------------

CudaIpcWire::CudaIpcWire(std::unique_ptr<Wire> messages, std::unique_ptr<CudaDevice> device,
                         const std::vector<std::string>& gpus, const CudaIpcOptions& options)
    : Wire(messages->rank(), messages->members()),
      messages_(std::move(messages)),
      options_(options),
      memory_(std::move(device), members(), rank(), gpus, options),
      device_(memory_.device()),
      inbox_(std::make_unique<Inbox>(*this)),
      produced_(memory_.make_own_event()),
      peers_(static_cast<std::size_t>(members().size()), Peer(options_.pages)),
      lent_(options_.events) {
  for (std::uint32_t i = 0; i < options_.events; ++i) free_events_.push_back(i);
  messages_->set_handler(inbox_.get());
}

CudaIpcWire::~CudaIpcWire() { messages_->set_handler(nullptr); }

namespace {

class CudaProbeMemory final : public ProbeMemory {
 public:
  explicit CudaProbeMemory(CudaDevice& device) : device_(device) {}
  ~CudaProbeMemory() override {
    for (auto* const block : blocks_) device_.free(block);
  }
  CudaProbeMemory(const CudaProbeMemory&) = delete;
  CudaProbeMemory& operator=(const CudaProbeMemory&) = delete;

  std::span<std::byte> allocate(std::size_t bytes) override {
    blocks_.push_back(device_.allocate(bytes));
    return {blocks_.back(), bytes};
  }
  void write(std::span<std::byte> to, const std::vector<std::byte>& bytes) override {
    device_.write(to.data(), bytes.data(), bytes.size());
  }
  std::vector<std::byte> read(std::span<const std::byte> from) override {
    wait_for_gpu();
    std::vector<std::byte> bytes(from.size());
    device_.read(bytes.data(), from.data(), bytes.size());
    return bytes;
  }

 private:
  /// Waits until the bytes that were received are there.
  void wait_for_gpu() const {
    const base::SteadyClock clock;
    const auto end = clock.now() + kGpuPatience;
    auto* const event = device_.make_event(/*shared=*/false);
    device_.record(event, device_.current_stream());
    bool done = device_.done(event);
    for (int idle = 0; !done && clock.now() < end; ++idle) {
      wait_politely(idle);
      done = device_.done(event);
    }
    device_.free_event(event);
    SMP_REQUIRE_AS(PeerLostError, done,
                   "what was to come from another process's GPU was not there ",
                   kGpuPatience / base::kSecond, " s after it was announced");
  }

  static constexpr base::Nanoseconds kGpuPatience = 20 * base::kSecond;
  CudaDevice& device_;
  std::vector<std::byte*> blocks_;
};

}  // namespace

std::unique_ptr<ProbeMemory> CudaIpcWire::probe_memory() {
  return std::make_unique<CudaProbeMemory>(device_);
}

// ---- sending -----------------------------------------------------------------------------------

void CudaIpcWire::tell(GlobalRank to, MessageKind kind, const Piece& piece) {
  post_labelled(*messages_, to, std::as_bytes(std::span(&piece, 1)), kind);
}

void CudaIpcWire::post(GlobalRank to, ByteBuffer&& control) {
  post_labelled(*messages_, to, control.span(), MessageKind::kControl);
  messages_->buffers().give(std::move(control));
}

void CudaIpcWire::send(std::span<const std::byte> bytes, GlobalRank to, TransferId id,
                       Token token) {
  device_.record(produced_, device_.current_stream());
  device_.wait(memory_.copies(), produced_);
  Outgoing transfer{bytes, id, token};
  completions_.begin_send();
  auto& waiting = peer(to).waiting;
  if (waiting.empty() && send_pieces(to, transfer)) return;
  waiting.push_back(transfer);
  ++waiting_;
}

std::uint32_t CudaIpcWire::pages_of(std::uint64_t bytes) const noexcept {
  return static_cast<std::uint32_t>((bytes + options_.page_bytes - 1) / options_.page_bytes);
}

/// Puts copies of the rest of a transfer on the GPU. Returns true if those of all of it are under
/// way.
bool CudaIpcWire::send_pieces(GlobalRank rank, Outgoing& transfer) {
  const std::size_t to = position(rank);
  while (transfer.done < transfer.bytes.size()) {
    const auto size = std::min<std::uint64_t>(transfer.bytes.size() - transfer.done,
                                              options_.piece_pages * options_.page_bytes);
    if (free_events_.empty()) return false;
    const auto page = peers_[to].window.take(pages_of(size));
    if (!page) return false;
    const Piece piece{transfer.id, transfer.done, size, *page, free_events_.back()};
    free_events_.pop_back();
    lent_[piece.event] = {rank, piece};
    device_.copy(memory_.page_to(to, *page), transfer.bytes.data() + transfer.done, size,
                 memory_.copies());
    device_.record(memory_.event(piece.event), memory_.copies());
    if (memory_.shares_events(to)) {
      tell(rank, MessageKind::kPiece, piece);
    } else {
      unannounced_.push_back({rank, piece});
    }
    transfer.done += size;
    if (transfer.done == transfer.bytes.size()) copying_.push_back({piece.event, transfer.token});
  }
  return true;
}

/// Sends transfers that found no pages or events before. Returns true if some are under way now.
bool CudaIpcWire::send_waiting() {
  if (waiting_ == 0) return false;
  const auto before = waiting_;
  for (const GlobalRank rank : members()) {
    auto& waiting = peer(rank).waiting;
    while (!waiting.empty() && send_pieces(rank, waiting.front())) {
      waiting.pop_front();
      --waiting_;
    }
  }
  return waiting_ < before;
}

bool CudaIpcWire::announce_done() {
  bool moved = false;
  while (!unannounced_.empty() && device_.done(memory_.event(unannounced_.front().piece.event))) {
    tell(unannounced_.front().to, MessageKind::kPiece, unannounced_.front().piece);
    unannounced_.pop_front();
    moved = true;
  }
  return moved;
}

bool CudaIpcWire::finish_done() {
  bool moved = false;
  while (!copying_.empty() && device_.done(memory_.event(copying_.front().event))) {
    completions_.note_sent(copying_.front().token);
    copying_.pop_front();
    moved = true;
  }
  return moved;
}

/// Takes pages and event of a piece back: the receiver is done with it, and so its copy into the
/// window is done as well.
void CudaIpcWire::on_free(GlobalRank source, const Piece& piece) {
  const auto* const lent =
      piece.event < lent_.size() && lent_[piece.event] ? &*lent_[piece.event] : nullptr;
  SMP_ASSERT(lent != nullptr && lent->to == source && lent->piece == piece, "rank ", rank(),
             ": rank ", source, " gives back ", piece.size, " bytes at page ", piece.page,
             " with event ", piece.event, ", which it was not lent");
  lent_[piece.event].reset();
  peer(source).window.give_back(piece.page, pages_of(piece.size));
  free_events_.push_back(piece.event);
  std::erase_if(copying_, [&](const Copying& copying) {
    if (copying.event != piece.event) return false;
    completions_.note_sent(copying.token);
    return true;
  });
}

// ---- receiving ---------------------------------------------------------------------------------

void CudaIpcWire::receive(std::span<std::byte> bytes, GlobalRank from, TransferId id, Token token) {
  auto& source = peer(from);
  Posted posted{id, bytes, token, bytes.size(), device_.current_stream()};
  std::erase_if(source.pieces, [&](const Piece& piece) {
    if (piece.id != id) return false;
    copy_out(from, posted, piece);
    return true;
  });
  if (posted.missing > 0) {
    source.receives.push_back(posted);
  } else {
    completions_.note_received(token);
  }
}

void CudaIpcWire::on_piece(GlobalRank source, const Piece& piece) {
  check_place(source, piece);
  auto& from = peer(source);
  const auto posted = std::find_if(from.receives.begin(), from.receives.end(),
                                   [&](const Posted& each) { return each.id == piece.id; });
  if (posted == from.receives.end()) return from.pieces.push_back(piece);
  copy_out(source, *posted, piece);
  if (posted->missing > 0) return;
  completions_.note_received(posted->token);
  from.receives.erase(posted);
}

/// Checks that a piece lies in the window of its sender.
void CudaIpcWire::check_place(GlobalRank source, const Piece& piece) const {
  SMP_ASSERT(piece.event < options_.events && piece.page < options_.pages && piece.size > 0 &&
                 piece.size <= std::uint64_t{options_.pages - piece.page} * options_.page_bytes,
             "rank ", rank(), ": rank ", source, " sent ", piece.size, " bytes at page ",
             piece.page, " with event ", piece.event);
}

/// Copies a piece to its place. Pieces come in order, so one that is lost or comes twice is seen.
void CudaIpcWire::copy_out(GlobalRank source, Posted& posted, const Piece& piece) {
  SMP_ASSERT(piece.size <= posted.missing && piece.offset == posted.bytes.size() - posted.missing,
             "rank ", rank(), ": receiving ", posted.bytes.size(), " bytes of rank ", source,
             ", which sent ", piece.size, " at ", piece.offset, " when ", posted.missing,
             " were missing");
  const std::size_t from = position(source);
  if (memory_.shares_events(from)) {
    device_.wait(posted.stream, memory_.event_of(from, piece.event));
  }
  device_.copy(posted.bytes.data() + piece.offset, memory_.page_from(from, piece.page), piece.size,
               posted.stream);
  if (free_readings_.empty()) free_readings_.push_back(memory_.make_own_event());
  auto* const done = free_readings_.back();
  free_readings_.pop_back();
  device_.record(done, posted.stream);
  reading_.push_back({done, source, piece});
  posted.missing -= piece.size;
}

/// Gives pages back that were read.
bool CudaIpcWire::free_read() {
  bool moved = false;
  while (!reading_.empty() && device_.done(reading_.front().done)) {
    const Reading read = reading_.front();
    reading_.pop_front();
    free_readings_.push_back(read.done);
    tell(read.source, MessageKind::kFree, read.piece);
    moved = true;
  }
  return moved;
}

void CudaIpcWire::on_message(GlobalRank source, ByteBuffer&& bytes) {
  const auto kind = take_label<MessageKind>(bytes, rank(), source);
  if (kind == MessageKind::kControl) {
    complete();
    return handler().on_control(source, std::move(bytes));
  }
  Piece piece;
  SMP_ASSERT(
      (kind == MessageKind::kPiece || kind == MessageKind::kFree) && bytes.size() == sizeof piece,
      "rank ", rank(), ": rank ", source, " sent a message of kind ",
      static_cast<std::uint32_t>(kind), " and ", bytes.size(), " bytes");
  std::memcpy(&piece, bytes.data(), sizeof piece);
  messages_->buffers().give(std::move(bytes));
  kind == MessageKind::kPiece ? on_piece(source, piece) : on_free(source, piece);
}

// ---- what is done ------------------------------------------------------------------------------

bool CudaIpcWire::complete() {
  send_waiting();
  finish_done();
  if (!copying_.empty()) {
    device_.wait(device_.current_stream(), memory_.event(copying_.back().event));
    for (const auto& copying : copying_) completions_.note_sent(copying.token);
    copying_.clear();
  }
  bool moved = false;
  while (completions_.tell(handler())) moved = true;
  return moved;
}

bool CudaIpcWire::poll() {
  bool moved = send_waiting() | announce_done() | free_read() | finish_done();
  moved |= messages_->poll();
  moved |= completions_.tell(handler());
  return moved;
}

bool CudaIpcWire::drained() const noexcept {
  return completions_.sends() == 0 && unannounced_.empty() && reading_.empty() &&
         messages_->drained();
}

/// Leaves. Once all that was lent to pieces of this rank has come back, nobody uses its events any
/// more, and its copies are done: it closes the memory of others, and comes. Who has come may still
/// be sent something, and reads it.
bool CudaIpcWire::leave() {
  if (!closed_) {
    if (!drained() || free_events_.size() < options_.events) return false;
    disconnect();
    closed_ = true;
  }
  return messages_->leave() && reading_.empty();
}

}  // namespace smp::d2d
