// d2d/wires/neuron/neuron_staging_wire.cpp: see the header.
#include "d2d/wires/neuron/neuron_staging_wire.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/keep_until_exit.h"
#include "d2d/wires/labelled_bytes.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

constexpr int kBitsOfPieces = 16;
using Direction = NeuronCopies::Direction;

/// The number that a piece has on the other wire.
TransferId inner_id(TransferId id, std::uint64_t piece) noexcept {
  return id << kBitsOfPieces | piece;
}

}  // namespace

/// Takes what comes over the other wire.
class NeuronStagingWire::Inbox final : public WireHandler {
 public:
  explicit Inbox(NeuronStagingWire& wire) : wire_(wire) {}
  void on_control(GlobalRank source, ByteBuffer&& bytes) override {
    wire_.on_message(source, std::move(bytes));
  }
  void on_sent(Token token) override { wire_.on_piece_sent(static_cast<std::uint32_t>(token)); }
  void on_received(Token token) override {
    wire_.arrived_.push_back(static_cast<std::uint32_t>(token));
  }

 private:
  NeuronStagingWire& wire_;
};

NeuronStagingWire::Buffers::Buffers(std::size_t bytes, std::uint32_t count)
    : memory(count, std::vector<std::byte>(bytes)), pieces(count) {
  for (std::uint32_t i = 0; i < count; ++i) free.push_back(i);
}

std::uint32_t NeuronStagingWire::Buffers::take(const Piece& piece) {
  const auto buffer = free.back();
  free.pop_back();
  pieces[buffer] = piece;
  return buffer;
}

NeuronStagingWire::NeuronStagingWire(std::unique_ptr<Wire> host,
                                     std::unique_ptr<NeuronCopies> copies,
                                     const NeuronPlaces& places,
                                     const NeuronStagingOptions& options)
    : Wire(host->rank(), host->members()),
      options_(options),
      sending_(options.piece_bytes, options.buffers),
      receiving_(options.piece_bytes, options.buffers),
      host_(std::move(host)),
      places_(places),
      inbox_(std::make_unique<Inbox>(*this)),
      copies_(std::move(copies)) {
  host_->set_handler(inbox_.get());
}

NeuronStagingWire::~NeuronStagingWire() {
  host_->set_handler(nullptr);
  if (copies_->wait()) return;
  base::keep_until_exit(std::move(sending_.memory));  // the core may still use them
  base::keep_until_exit(std::move(receiving_.memory));
}

// ---- messages ----------------------------------------------------------------------------------

void NeuronStagingWire::tell(GlobalRank to, MessageKind kind, const Message& message) {
  post_labelled(*host_, to, std::as_bytes(std::span(&message, 1)), kind);
}

void NeuronStagingWire::post(GlobalRank to, ByteBuffer&& control) {
  post_labelled(*host_, to, control.span(), MessageKind::kControl);
  host_->buffers().give(std::move(control));
}

void NeuronStagingWire::on_message(GlobalRank source, ByteBuffer&& bytes) {
  const auto kind = take_label<MessageKind>(bytes, rank(), source);
  if (kind == MessageKind::kControl) {
    while (completions_.tell(handler())) continue;  // an answer tells that what it answers has left
    return handler().on_control(source, std::move(bytes));
  }
  Message message;
  SMP_ASSERT((kind == MessageKind::kTransfer || kind == MessageKind::kPiece) &&
                 bytes.size() == sizeof message,
             "rank ", rank(), ": rank ", source, " sent a message of kind ",
             static_cast<std::uint32_t>(kind), " and ", bytes.size(), " bytes");
  std::memcpy(&message, bytes.data(), sizeof message);
  host_->buffers().give(std::move(bytes));
  kind == MessageKind::kTransfer ? on_announced(source, message) : on_asked(source, message);
}

// ---- sending -----------------------------------------------------------------------------------

NeuronPlace NeuronStagingWire::place_of(const NeuronPlace& whole,
                                        std::uint64_t piece) const noexcept {
  const auto before = piece * options_.piece_bytes;
  return {whole.tensor, whole.offset + before, whole.room - before, whole.core};
}

NeuronStagingWire::Outgoing& NeuronStagingWire::outgoing(GlobalRank to, TransferId id) {
  const auto found = std::find_if(
      outgoing_.begin(), outgoing_.end(),
      [&](const Outgoing& transfer) { return transfer.to == to && transfer.id == id; });
  SMP_ASSERT(found != outgoing_.end(), "rank ", rank(), ": rank ", to, " asks for transfer ", id,
             ", which is not sent");
  return *found;
}

void NeuronStagingWire::send(std::span<const std::byte> bytes, GlobalRank to, TransferId id,
                             Token token) {
  SMP_REQUIRE_AS(UnsupportedError, pieces_of(bytes.size()) <= std::uint64_t{1} << kBitsOfPieces,
                 "rank ", rank(), ": sending ", bytes.size(), " bytes of Neuron memory to rank ",
                 to, "; at most ", options_.piece_bytes << kBitsOfPieces,
                 " are possible, send less at once.");
  SMP_ASSERT(id >> (64 - kBitsOfPieces) == 0, "transfer ", id);
  outgoing_.push_back({places_.require(bytes), bytes.size(), 0, 0, to, id, token});
  completions_.begin_send();
  tell(to, MessageKind::kTransfer, {id, bytes.size()});
}

void NeuronStagingWire::on_asked(GlobalRank source, const Message& message) {
  auto& transfer = outgoing(source, message.id);
  SMP_ASSERT(message.number == transfer.asked && message.number < pieces_of(transfer.size), "rank ",
             rank(), ": rank ", source, " asks for piece ", message.number, " of transfer ",
             message.id, ", of which ", transfer.asked, " of ", pieces_of(transfer.size),
             " pieces were asked for");
  ++transfer.asked;
  asked_.push_back({source, message.id, message.number});
}

/// Copies pieces that their receivers wait for, and sends those that have come to the host.
bool NeuronStagingWire::copy_to_host() {
  bool moved = false;
  while (!asked_.empty() && !sending_.free.empty()) {
    const Piece piece = asked_.front();
    const auto& transfer = outgoing(piece.peer, piece.id);
    const auto size = bytes_of(transfer.size, piece.number);
    const auto buffer = sending_.free.back();
    if (!copies_->start(Direction::kToHost, place_of(transfer.place, piece.number),
                        sending_.memory[buffer].data(), size, buffer)) {
      break;
    }
    sending_.take(piece);
    asked_.pop_front();
    moved = true;
  }
  for (const auto ticket : copies_->done_to_host()) {
    const auto buffer = static_cast<std::uint32_t>(ticket);
    const Piece& piece = sending_.pieces[buffer];
    const auto size = bytes_of(outgoing(piece.peer, piece.id).size, piece.number);
    host_->send(sending_.bytes(buffer, size), piece.peer, inner_id(piece.id, piece.number), buffer);
    moved = true;
  }
  return moved;
}

void NeuronStagingWire::on_piece_sent(std::uint32_t buffer) {
  const Piece& piece = sending_.pieces[buffer];
  auto& transfer = outgoing(piece.peer, piece.id);
  sending_.free.push_back(buffer);
  if (++transfer.sent < pieces_of(transfer.size)) return;
  completions_.note_sent(transfer.token);
  transfer = outgoing_.back();
  outgoing_.pop_back();
}

// ---- receiving ---------------------------------------------------------------------------------

NeuronStagingWire::Incoming& NeuronStagingWire::incoming(GlobalRank from, TransferId id) {
  const auto found = std::find_if(
      incoming_.begin(), incoming_.end(),
      [&](const Incoming& transfer) { return transfer.from == from && transfer.id == id; });
  SMP_ASSERT(found != incoming_.end(), "rank ", rank(), ": nobody receives transfer ", id,
             " of rank ", from);
  return *found;
}

void NeuronStagingWire::receive(std::span<std::byte> bytes, GlobalRank from, TransferId id,
                                Token token) {
  incoming_.push_back({places_.require(bytes), bytes.size(), 0, 0, from, id, token, false});
  const auto told = std::find_if(
      announced_.begin(), announced_.end(),
      [&](const Announced& transfer) { return transfer.from == from && transfer.id == id; });
  if (told == announced_.end()) return;
  announce(incoming_.back(), told->size);
  *told = announced_.back();
  announced_.pop_back();
}

void NeuronStagingWire::on_announced(GlobalRank source, const Message& message) {
  const auto posted =
      std::find_if(incoming_.begin(), incoming_.end(), [&](const Incoming& transfer) {
        return transfer.from == source && transfer.id == message.id;
      });
  if (posted != incoming_.end()) return announce(*posted, message.number);
  announced_.push_back({source, message.id, message.number});
}

/// Both sides have named a transfer: its pieces are asked for from now on.
void NeuronStagingWire::announce(Incoming& transfer, std::uint64_t size) {
  SMP_ASSERT(transfer.size == size && !transfer.is_announced, "rank ", rank(), ": receiving ",
             transfer.size, " bytes from rank ", transfer.from, " as transfer ", transfer.id,
             ", which sent ", size);
  transfer.is_announced = true;
  to_ask_.push_back({transfer.from, transfer.id, 0});
}

bool NeuronStagingWire::ask_for_pieces() {
  bool moved = false;
  while (!to_ask_.empty() && !receiving_.free.empty()) {
    const Piece piece = to_ask_.front();
    auto& transfer = incoming(piece.peer, piece.id);
    const auto buffer = receiving_.take(piece);
    host_->receive(receiving_.bytes(buffer, bytes_of(transfer.size, piece.number)), piece.peer,
                   inner_id(piece.id, piece.number), buffer);
    tell(piece.peer, MessageKind::kPiece, {piece.id, piece.number});
    if (++transfer.asked == pieces_of(transfer.size)) {
      to_ask_.pop_front();
    } else {
      ++to_ask_.front().number;
    }
    moved = true;
  }
  return moved;
}

/// Copies pieces that came to their places.
bool NeuronStagingWire::copy_to_device() {
  bool moved = false;
  while (!arrived_.empty()) {
    const auto buffer = arrived_.front();
    const Piece& piece = receiving_.pieces[buffer];
    const auto& transfer = incoming(piece.peer, piece.id);
    if (!copies_->start(Direction::kToDevice, place_of(transfer.place, piece.number),
                        receiving_.memory[buffer].data(), bytes_of(transfer.size, piece.number),
                        buffer)) {
      break;
    }
    arrived_.pop_front();
    moved = true;
  }
  for (const auto ticket : copies_->done_to_device()) {
    const auto buffer = static_cast<std::uint32_t>(ticket);
    auto& transfer = incoming(receiving_.pieces[buffer].peer, receiving_.pieces[buffer].id);
    receiving_.free.push_back(buffer);
    moved = true;
    if (++transfer.written < pieces_of(transfer.size)) continue;
    completions_.note_received(transfer.token);
    transfer = incoming_.back();
    incoming_.pop_back();
  }
  return moved;
}

// ---- what is done ------------------------------------------------------------------------------

bool NeuronStagingWire::advance() {
  // Each of them: what one frees another may take.
  const bool moved = copy_to_host() | copy_to_device() | ask_for_pieces();
  if (moved || host_->take_stir()) note_stir();
  return moved;
}

bool NeuronStagingWire::complete() {
  host_->complete();
  advance();
  bool told = false;
  while (completions_.tell(handler())) told = true;
  return told;
}

bool NeuronStagingWire::poll() {
  bool moved = advance();
  moved |= host_->poll();
  moved |= advance();
  moved |= completions_.tell(handler());
  return moved;
}

void NeuronStagingWire::check_links() {
  host_->check_links();
  copies_->require_alive();
}

bool NeuronStagingWire::drained() const noexcept {
  return completions_.sends() == 0 && host_->drained();
}

/// Leaves. Who has come may still be sent something, and asks for it.
bool NeuronStagingWire::leave() {
  if (!leaving_) {
    if (!drained()) return false;
    leaving_ = true;
  }
  return host_->leave() && copies_->idle() && arrived_.empty();
}

}  // namespace smp::d2d
