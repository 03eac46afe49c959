// d2d/wires/shm/host_shm_wire.cpp: see the header.
#include "d2d/wires/shm/host_shm_wire.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/memory/cross_memory.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

enum RecordKind : std::uint32_t { kControl = 1, kControlPart, kPiece, kOffer };

/// The number of records read from one peer before the next has its turn.
constexpr int kMostRecords = 32;

std::vector<HostShmSegment> segments_of(std::vector<base::SharedMemory>&& memories, int size,
                                        const HostShmOptions& options) {
  SMP_ASSERT(memories.size() == static_cast<std::size_t>(size), memories.size(), " segments");
  std::vector<HostShmSegment> segments;
  for (auto& memory : memories) segments.emplace_back(std::move(memory), size, options);
  return segments;
}

}  // namespace

HostShmWire::HostShmWire(GlobalRank rank, Members members, std::vector<base::SharedMemory> segments,
                         const HostShmOptions& options, HostShmProcesses processes,
                         const HostShmWire* beside)
    : Wire(rank, std::move(members)),
      options_(options),
      processes_(std::move(processes)),
      segments_(segments_of(std::move(segments), this->members().size(), options_)),
      position_(this->members().position(rank)),
      doorbell_(doorbell_of(position_, beside)),
      blocks_(segments_[static_cast<std::size_t>(position_)], options_.blocks,
              this->members().size(), position_),
      losses_(segments_, position_, processes_.numbers, doorbell_, options_.launcher_patience) {
  for (int i = 0; i < this->members().size(); ++i) {
    const auto index = static_cast<std::size_t>(i);
    peers_.push_back({{segments_[static_cast<std::size_t>(position_)].ring(i), options_.ring_lines},
                      {segments_[index].ring(position_), options_.ring_lines},
                      index,
                      doorbell_of(i, beside)});
  }
}

base::Doorbell HostShmWire::doorbell_of(int position, const HostShmWire* beside) const noexcept {
  const auto& segments = beside == nullptr ? segments_ : beside->segments_;
  return base::Doorbell(segments[static_cast<std::size_t>(position)].doorbell());
}

// ---- sending -----------------------------------------------------------------------------------

void HostShmWire::post(GlobalRank to, ByteBuffer&& bytes) {
  auto& receiver = peer(to);
  ControlToSend control{std::move(bytes)};
  if (receiver.control.empty() && send_control(receiver, control)) return;
  receiver.control.push_back(std::move(control));
  ++waiting_;
}

void HostShmWire::commit(Peer& to, std::uint32_t kind) noexcept {
  to.out.commit(kind);
  to.doorbell.ring();
}

/// Puts control bytes into the ring; what a ring does not hold goes in parts. Returns true if all
/// of it is there.
bool HostShmWire::send_control(Peer& to, ControlToSend& control) {
  const auto all = control.bytes.span();
  do {
    const auto size = std::min(all.size() - control.done, to.out.most_payload());
    auto* const place = to.out.begin(size);
    if (place == nullptr) return false;
    if (size > 0) std::memcpy(place, all.data() + control.done, size);
    control.done += size;
    commit(to, control.done == all.size() ? kControl : kControlPart);
  } while (control.done < all.size());
  buffers_.give(std::move(control.bytes));
  return true;
}

void HostShmWire::send(std::span<const std::byte> bytes, GlobalRank to, TransferId id,
                       Token token) {
  auto& receiver = peer(to);
  DataToSend data{bytes, id, token};
  completions_.begin_send();
  if (receiver.data.empty() && send_data(receiver, data)) return;
  receiver.data.push_back(data);
  ++waiting_;
}

/// Copies data into blocks, or offers it. Returns true if nothing of it waits here any more.
bool HostShmWire::send_data(Peer& to, DataToSend& data) {
  if (processes_.may_read_each_other && data.bytes.size() >= options_.least_fetched)
    return offer(to, data);
  while (data.done < data.bytes.size()) {
    auto* const place = to.out.begin(sizeof(Piece));
    if (place == nullptr) return false;
    const auto block = blocks_.take(to.position);
    if (!block) return false;
    const auto size = std::min(data.bytes.size() - data.done, options_.block_bytes);
    const Piece piece{data.id, data.done, *block, static_cast<std::uint32_t>(size)};
    auto& own = segments_[static_cast<std::size_t>(position_)];
    std::memcpy(own.block(*block), data.bytes.data() + data.done, size);
    std::memcpy(place, &piece, sizeof piece);
    commit(to, kPiece);
    data.done += size;
  }
  completions_.note_sent(data.token);
  return true;
}

/// Tells the other rank where the data lies. Returns true if it was told: the data stays there
/// until that rank has fetched it.
bool HostShmWire::offer(Peer& to, const DataToSend& data) {
  auto* const place = to.out.begin(sizeof(Offer));
  if (place == nullptr) return false;
  const auto block = blocks_.take(to.position, data.token);
  if (!block) return false;
  const Offer offer{data.id, reinterpret_cast<std::uint64_t>(data.bytes.data()), data.bytes.size(),
                    *block};
  std::memcpy(place, &offer, sizeof offer);
  commit(to, kOffer);
  return true;
}

/// Sends bytes that found no room before; another waiting peer is first each time. Returns true if
/// something went.
bool HostShmWire::send_waiting() {
  if (waiting_ == 0) return false;
  const auto before = waiting_;
  first_to_send_ = (first_to_send_ + 1) % peers_.size();
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    auto& to = peers_[(first_to_send_ + i) % peers_.size()];
    while (!to.control.empty() && send_control(to, to.control.front())) {
      to.control.pop_front();
      --waiting_;
    }
    while (!to.data.empty() && send_data(to, to.data.front())) {
      to.data.pop_front();
      --waiting_;
    }
  }
  return waiting_ < before;
}

// ---- receiving ---------------------------------------------------------------------------------

void HostShmWire::receive(std::span<std::byte> bytes, GlobalRank from, TransferId id, Token token) {
  const int position = members().position(from);
  auto& source = peer(from);
  Posted posted{id, bytes, token, bytes.size()};
  std::erase_if(source.pieces, [&](const Piece& piece) {
    if (piece.id != id) return false;
    copy_out(position, posted, piece);
    return true;
  });
  const auto offer = std::find_if(source.offers.begin(), source.offers.end(),
                                  [id](const Offer& each) { return each.id == id; });
  if (offer != source.offers.end()) {
    fetch(position, posted, *offer);
    source.offers.erase(offer);
  } else if (posted.missing > 0) {
    source.receives.push_back(posted);
  } else {
    completions_.note_received(token);
  }
}

void HostShmWire::on_offer(int source, const Offer& offer) {
  SMP_ASSERT(offer.block < options_.blocks, "rank ", rank(), ": rank ", members()[source],
             " offers ", offer.size, " bytes with block ", offer.block);
  auto& from = peers_[static_cast<std::size_t>(source)];
  const auto posted = std::find_if(from.receives.begin(), from.receives.end(),
                                   [&](const Posted& each) { return each.id == offer.id; });
  if (posted == from.receives.end()) return from.offers.push_back(offer);
  fetch(source, *posted, offer);
  from.receives.erase(posted);
}

void HostShmWire::fetch(int source, const Posted& posted, const Offer& offer) {
  SMP_ASSERT(offer.size == posted.bytes.size(), "rank ", rank(), ": receiving ",
             posted.bytes.size(), " bytes of rank ", members()[source], ", which sent ",
             offer.size);
  const auto index = static_cast<std::size_t>(source);
  if (!base::read_process_memory(processes_.numbers[index], offer.address, posted.bytes)) {
    throw PeerLostError(base::concat("rank ", rank(), ": reading ", offer.size, " bytes of rank ",
                                     members()[source], " (process ", processes_.numbers[index],
                                     ") failed: it is gone, or this machine has begun to refuse "
                                     "it; if that is so, try transport = mpi"));
  }
  const auto block = static_cast<std::uint32_t>(offer.block);
  give_back(source, block);
  completions_.note_received(posted.token);
}

/// Gives a block back, and rings: the sender may wait for it, or be told that what it offered has
/// left.
void HostShmWire::give_back(int source, std::uint32_t block) noexcept {
  const auto index = static_cast<std::size_t>(source);
  segments_[index].in_use(block).store(0, std::memory_order_release);
  peers_[index].doorbell.ring();
}

void HostShmWire::copy_out(int source, Posted& posted, const Piece& piece) {
  // Pieces come in order, so one that is lost or comes twice is seen.
  SMP_ASSERT(piece.size <= posted.missing && piece.offset == posted.bytes.size() - posted.missing,
             "rank ", rank(), ": receiving ", posted.bytes.size(), " bytes of rank ",
             members()[source], ", which sent ", piece.size, " at ", piece.offset, " when ",
             posted.missing, " were missing");
  auto& segment = segments_[static_cast<std::size_t>(source)];
  std::memcpy(posted.bytes.data() + piece.offset, segment.block(piece.block), piece.size);
  give_back(source, piece.block);
  posted.missing -= piece.size;
}

void HostShmWire::on_piece(int source, const Piece& piece) {
  SMP_ASSERT(piece.block < options_.blocks && piece.size > 0 && piece.size <= options_.block_bytes,
             "rank ", rank(), ": rank ", members()[source], " sent ", piece.size,
             " bytes in block ", piece.block);
  auto& from = peers_[static_cast<std::size_t>(source)];
  const auto posted = std::find_if(from.receives.begin(), from.receives.end(),
                                   [&](const Posted& each) { return each.id == piece.id; });
  if (posted == from.receives.end()) return from.pieces.push_back(piece);
  copy_out(source, *posted, piece);
  if (posted->missing > 0) return;
  completions_.note_received(posted->token);
  from.receives.erase(posted);
}

/// Hands on control bytes whose last part is in the ring.
void HostShmWire::hand_on(int source, std::span<const std::byte> last_part) {
  auto& from = peers_[static_cast<std::size_t>(source)];
  const auto before = from.arriving.size();
  ByteBuffer control = buffers_.take();
  control.resize(before + last_part.size());
  if (before > 0) std::memcpy(control.data(), from.arriving.data(), before);
  if (!last_part.empty()) {
    std::memcpy(control.data() + before, last_part.data(), last_part.size());
  }
  from.arriving.clear();
  from.in.pop();
  complete();
  handler().on_control(members()[source], std::move(control));
}

void HostShmWire::read(int source, const ShmRing::Record& record) {
  auto& from = peers_[static_cast<std::size_t>(source)];
  if (record.kind == kControl) return hand_on(source, record.payload);
  if (record.kind == kControlPart) {
    from.arriving.insert(from.arriving.end(), record.payload.begin(), record.payload.end());
    return from.in.pop();
  }
  if (record.kind == kOffer) {
    Offer offer;
    SMP_ASSERT(record.payload.size() == sizeof offer, "rank ", rank(), ": rank ", members()[source],
               " offers something in ", record.payload.size(), " bytes");
    std::memcpy(&offer, record.payload.data(), sizeof offer);
    from.in.pop();
    return on_offer(source, offer);
  }
  Piece piece;
  SMP_ASSERT(record.kind == kPiece && record.payload.size() == sizeof piece, "rank ", rank(),
             ": rank ", members()[source], " wrote a record of kind ", record.kind, " and ",
             record.payload.size(), " bytes");
  std::memcpy(&piece, record.payload.data(), sizeof piece);
  from.in.pop();
  on_piece(source, piece);
}

bool HostShmWire::read_from(int source) {
  auto& from = peers_[static_cast<std::size_t>(source)];
  int records = 0;
  for (; records < kMostRecords; ++records) {
    const auto record = from.in.front();
    if (!record) break;
    read(source, *record);
  }
  return records > 0;
}

// ---- what is done ------------------------------------------------------------------------------

bool HostShmWire::complete() {
  bool moved = send_waiting();
  blocks_.take_back_offered([this](Token token) { completions_.note_sent(token); });
  while (completions_.tell(handler())) moved = true;
  return moved;
}

bool HostShmWire::poll() {
  bool moved = complete();
  for (int source = 0; source < members().size(); ++source) {
    if (source != position_ && read_from(source)) moved = true;
  }
  completions_.tell(handler());
  if (!moved && !leaving_ && losses_.any_ended()) require_no_loss();
  return moved;
}

/// Throws if a peer is lost. It may have said why: all that it sent is there, since it has ended,
/// and is read first.
void HostShmWire::require_no_loss() {
  for (Peer& peer : peers_) {
    if (!losses_.is_lost(peer.position) || peer.in.front()) continue;
    throw PeerLostError(base::concat("rank ", rank(), ": rank ",
                                     members()[static_cast<int>(peer.position)],
                                     " is gone: its process ", processes_.numbers[peer.position],
                                     " has ended; restart from a checkpoint"));
  }
}

/// Leaves. A rank that has left sends no more, so all that it sent is in the ring already.
bool HostShmWire::leave() {
  leaving_ = true;
  if (losses_.any_for_long()) require_no_loss();
  if (!drained()) return false;
  segments_[static_cast<std::size_t>(position_)].left().store(1, std::memory_order_release);
  for (int i = 0; i < members().size(); ++i) {
    if (i == position_) continue;
    const auto index = static_cast<std::size_t>(i);
    if (segments_[index].left().load(std::memory_order_acquire) == 0) return false;
    if (peers_[index].in.front()) return false;
  }
  return true;
}

}  // namespace smp::d2d
