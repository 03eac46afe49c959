// d2d/wires/neuron_paths/neuron_staging_wire.cpp: see the header.
#include "d2d/wires/neuron_paths/neuron_staging_wire.h"

#include <utility>

#include "base/check.h"
#include "base/keep_until_exit.h"
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
    : NeuronWire(std::move(host), places),
      options_(options),
      sending_(options.piece_bytes, options.buffers),
      receiving_(options.piece_bytes, options.buffers),
      copies_(std::move(copies)) {}

NeuronStagingWire::~NeuronStagingWire() {
  drop_messages();  // it uses the buffers
  if (copies_->wait()) return;
  base::keep_until_exit(std::move(sending_.memory));  // the core may still use them
  base::keep_until_exit(std::move(receiving_.memory));
}

bool NeuronStagingWire::on_told(GlobalRank source, std::uint32_t kind, const Message& message) {
  if (kind != kAsk) return false;
  auto& transfer = outgoing(source, message.id);
  SMP_ASSERT(message.number == transfer.asked && message.number < pieces_of(transfer.size), "rank ",
             rank(), ": rank ", source, " asks for piece ", message.number, " of transfer ",
             message.id, ", of which ", transfer.asked, " of ", pieces_of(transfer.size),
             " pieces were asked for");
  ++transfer.asked;
  asked_.push({source, message.id, message.number});
  return true;
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

void NeuronStagingWire::on_send(GlobalRank to, const Transfer& transfer) {
  SMP_REQUIRE_AS(UnsupportedError, pieces_of(transfer.size) <= std::uint64_t{1} << kBitsOfPieces,
                 "rank ", rank(), ": sending ", transfer.size, " bytes of Neuron memory to rank ",
                 to, "; at most ", options_.piece_bytes << kBitsOfPieces,
                 " are possible, send less at once.");
  SMP_ASSERT(transfer.id >> (64 - kBitsOfPieces) == 0, "transfer ", transfer.id);
  outgoing_.push_back({transfer, to});
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
    asked_.pop();
    moved = true;
  }
  for (const auto ticket : copies_->done_to_host()) {
    const auto buffer = static_cast<std::uint32_t>(ticket);
    const Piece& piece = sending_.pieces[buffer];
    const auto size = bytes_of(outgoing(piece.peer, piece.id).size, piece.number);
    messages().send(sending_.bytes(buffer, size), piece.peer, inner_id(piece.id, piece.number),
                    buffer);
    moved = true;
  }
  return moved;
}

void NeuronStagingWire::on_bytes_sent(Token token) {
  const auto buffer = static_cast<std::uint32_t>(token);
  const Piece& piece = sending_.pieces[buffer];
  auto& transfer = outgoing(piece.peer, piece.id);
  sending_.free.push_back(buffer);
  if (++transfer.sent < pieces_of(transfer.size)) return;
  completions().note_sent(transfer.token);
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

void NeuronStagingWire::on_matched(GlobalRank from, const Transfer& transfer) {
  incoming_.push_back({transfer, from});
  to_ask_.push({from, transfer.id, 0});
}

void NeuronStagingWire::on_bytes_received(Token token) {
  arrived_.push(static_cast<std::uint32_t>(token));
}

bool NeuronStagingWire::ask_for_pieces() {
  bool moved = false;
  while (!to_ask_.empty() && !receiving_.free.empty()) {
    const Piece piece = to_ask_.front();
    auto& transfer = incoming(piece.peer, piece.id);
    const auto buffer = receiving_.take(piece);
    messages().receive(receiving_.bytes(buffer, bytes_of(transfer.size, piece.number)), piece.peer,
                       inner_id(piece.id, piece.number), buffer);
    tell(piece.peer, kAsk, {piece.id, piece.number});
    if (++transfer.asked == pieces_of(transfer.size)) {
      to_ask_.pop();
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
    arrived_.pop();
    moved = true;
  }
  for (const auto ticket : copies_->done_to_device()) {
    const auto buffer = static_cast<std::uint32_t>(ticket);
    auto& transfer = incoming(receiving_.pieces[buffer].peer, receiving_.pieces[buffer].id);
    receiving_.free.push_back(buffer);
    moved = true;
    if (++transfer.written < pieces_of(transfer.size)) continue;
    completions().note_received(transfer.token);
    transfer = incoming_.back();
    incoming_.pop_back();
  }
  return moved;
}

// ---- what is done ------------------------------------------------------------------------------

bool NeuronStagingWire::advance() {
  // Each of them: what one frees another may take.
  return copy_to_host() | copy_to_device() | ask_for_pieces();
}

void NeuronStagingWire::check_links() {
  NeuronWire::check_links();
  copies_->require_alive();
}

bool NeuronStagingWire::end() { return copies_->idle() && arrived_.empty(); }

}  // namespace smp::d2d
