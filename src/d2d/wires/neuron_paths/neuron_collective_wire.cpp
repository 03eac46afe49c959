// d2d/wires/neuron_paths/neuron_collective_wire.cpp: see the header.
#include "d2d/wires/neuron_paths/neuron_collective_wire.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace smp::d2d {

NeuronCollectiveWire::NeuronCollectiveWire(std::unique_ptr<Wire> messages,
                                           std::unique_ptr<NeuronGathers> gathers,
                                           const NeuronPlaces& places)
    : NeuronWire(std::move(messages), places),
      gathers_(std::move(gathers)),
      peers_(static_cast<std::size_t>(members().size())) {
  for (const GlobalRank member : members()) peer(member).name = base::concat("rank ", member);
}

// ---- who sends what ----------------------------------------------------------------------------

std::size_t NeuronCollectiveWire::piece_of(const Moving& transfer) const noexcept {
  return std::min(gathers_->slot_bytes(), transfer.size - transfer.done);
}

NeuronCollectiveWire::Moving& NeuronCollectiveWire::incoming(GlobalRank from, TransferId id) {
  auto& all = peer(from).incoming;
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Moving& each) { return each.id == id; });
  SMP_ASSERT(found != all.end(), "rank ", rank(), ": nobody receives transfer ", id, " of rank ",
             from);
  return *found;
}

void NeuronCollectiveWire::on_send(GlobalRank to, const Transfer& transfer) {
  peer(to).named.push_back(transfer);
}

void NeuronCollectiveWire::on_matched(GlobalRank from, const Transfer& transfer) {
  peer(from).incoming.push_back({transfer});
  tell(from, kReady, {transfer.id, 0});
}

void NeuronCollectiveWire::on_ready(GlobalRank source, TransferId id) {
  auto& named = peer(source).named;
  const auto found =
      std::find_if(named.begin(), named.end(), [&](const Transfer& each) { return each.id == id; });
  SMP_ASSERT(found != named.end(), "rank ", rank(), ": rank ", source, " is ready for transfer ",
             id, ", which is not sent");
  peer(source).outgoing.push({*found});
  *found = named.back();
  named.pop_back();
  want_turn(source);
}

bool NeuronCollectiveWire::on_told(GlobalRank source, std::uint32_t kind, const Message& message) {
  switch (kind) {
    case kReady:
      on_ready(source, message.id);
      return true;
    case kWanted:
      on_wanted(source, message.number);
      return true;
    case kTurn:
    case kEntered:
      on_turn(source, message);
      return true;
    default:
      return false;
  }
}

// ---- turns -------------------------------------------------------------------------------------

/// A turn that has a piece of this rank.
void NeuronCollectiveWire::want_turn(GlobalRank with) {
  auto& other = peer(with);
  if (other.outgoing.empty()) return;
  if (is_below(with)) return wait_for_core(with);
  if (std::exchange(other.is_wanted, true)) return;
  tell(with, kWanted, {kNone, other.turns});
}

/// A turn that was on its way to the higher rank when that asked takes what it has: another one
/// would be empty, and a rank that has got everything may not be there for it.
void NeuronCollectiveWire::on_wanted(GlobalRank source, std::uint64_t turns_known) {
  auto& other = peer(source);
  if (turns_known != other.turns) return;
  other.is_wanted = true;
  wait_for_core(source);
}

void NeuronCollectiveWire::wait_for_core(GlobalRank with) {
  if (std::exchange(peer(with).is_waiting, true)) return;
  waiting_.push(with);
}

/// The lower rank has its core for this one, or the higher one, which was asked, has.
void NeuronCollectiveWire::on_turn(GlobalRank source, const Message& message) {
  auto& other = peer(source);
  const auto expected = is_below(source) ? other.turns - 1 : other.turns;
  SMP_ASSERT(message.number == expected, "rank ", rank(), ": turn ", message.number, " of rank ",
             source, " instead of ", expected);
  if (!is_below(source)) {
    ++other.turns;
    other.is_wanted = true;  // it takes what this rank sends until it has its core
    other.offered = message.id;
    return wait_for_core(source);
  }
  SMP_ASSERT(turn_ && turn_->with == source && !turn_->is_met, "rank ", rank(), ": rank ", source,
             " has entered a turn that it was not asked for");
  note_incoming(*turn_, message.id);
  turn_->is_met = true;
}

/// Takes this rank's core for the turn that has waited for the longest time.
bool NeuronCollectiveWire::take_core() {
  if (waiting_.empty()) return false;
  const GlobalRank with = waiting_.pop();
  auto& other = peer(with);
  other.is_waiting = false;
  if (is_below(with)) {
    if (other.outgoing.empty() && !other.is_wanted) return true;  // an earlier turn had it
    other.is_wanted = false;
    turn_ = Turn{with};
    note_outgoing(*turn_);
    tell(with, kTurn, {turn_->out_id, other.turns++});
    return true;
  }
  turn_ = Turn{with};
  note_incoming(*turn_, std::exchange(other.offered, kNone));
  note_outgoing(*turn_);
  other.is_wanted = false;
  return true;
}

void NeuronCollectiveWire::note_incoming(Turn& turn, TransferId id) {
  turn.in_id = id;
  if (id != kNone) turn.in = piece_of(incoming(turn.with, id));
}

void NeuronCollectiveWire::note_outgoing(Turn& turn) {
  const auto& outgoing = peer(turn.with).outgoing;
  if (outgoing.empty()) return;
  turn.out = piece_of(outgoing.front());
  turn.out_id = outgoing.front().id;
}

/// Starts what the turn does next; false: nothing can be started.
bool NeuronCollectiveWire::start_stage() {
  auto& turn = *turn_;
  auto& other = peer(turn.with);
  const auto larger = std::max(turn.in, turn.out);
  const auto place_in = [](const Moving& transfer) {
    return NeuronPlace{transfer.place.tensor, transfer.place.offset + transfer.done,
                       transfer.place.room - transfer.done, transfer.place.core};
  };
  switch (turn.stage) {
    case Stage::kLoading:
      if (turn.out == 0) break;
      return turn.is_started = gathers_->load(place_in(other.outgoing.front()), turn.out);
    case Stage::kMeeting:  // both have loaded: they enter at about the same time
      if (!is_below(turn.with)) {
        tell(turn.with, kEntered, {turn.out_id, other.turns - 1});
        turn.is_met = true;
      }
      if (!turn.is_met) return false;
      break;
    case Stage::kExchanging:
      SMP_ASSERT(larger > 0, "rank ", rank(), ": an empty turn with ", other.name);
      return turn.is_started = gathers_->enter(turn.with.value(), larger, other.name);
    case Stage::kUnloading:
      if (turn.in == 0) return end_turn(), true;
      return turn.is_started = gathers_->unload(turn.with.value(), larger,
                                                place_in(incoming(turn.with, turn.in_id)), turn.in);
  }
  turn.stage = static_cast<Stage>(static_cast<int>(turn.stage) + 1);
  return true;
}

bool NeuronCollectiveWire::step() {
  if (!turn_) return take_core();
  auto& turn = *turn_;
  if (!turn.is_started) return start_stage();
  if (!gathers_->done()) return false;
  turn.is_started = false;
  if (turn.stage == Stage::kUnloading) return end_turn(), true;
  turn.stage = static_cast<Stage>(static_cast<int>(turn.stage) + 1);
  return true;
}

void NeuronCollectiveWire::end_turn() {
  const Turn turn = *turn_;
  turn_.reset();
  auto& other = peer(turn.with);
  if (turn.out > 0) {
    auto& transfer = other.outgoing.front();
    transfer.done += turn.out;
    if (transfer.done == transfer.size) completions().note_sent(other.outgoing.pop().token);
  }
  if (turn.in > 0) {
    auto& transfer = incoming(turn.with, turn.in_id);
    transfer.done += turn.in;
    if (transfer.done == transfer.size) {
      completions().note_received(transfer.token);
      transfer = other.incoming.back();
      other.incoming.pop_back();
    }
  }
  want_turn(turn.with);
}

bool NeuronCollectiveWire::advance() {
  bool moved = false;
  while (step()) moved = true;
  return moved;
}

// ---- control bytes -----------------------------------------------------------------------------

/// True while a peer may have got what this rank does not know to have left: an answer tells that
/// what it answers has.
bool NeuronCollectiveWire::may_answer_early(GlobalRank source) const noexcept {
  return turn_ && turn_->with == source && turn_->is_met && turn_->out > 0;
}

void NeuronCollectiveWire::on_control(GlobalRank source, ByteBuffer&& bytes) {
  peer(source).held.push(std::move(bytes));
  ++held_;
}

bool NeuronCollectiveWire::hand_on_kept() {
  if (held_ == 0) return false;
  bool moved = false;
  for (const GlobalRank member : members()) {
    auto& other = peer(member);
    while (!other.held.empty() && !may_answer_early(member)) {
      --held_;
      hand_on_control(member, other.held.pop());
      moved = true;
    }
  }
  return moved;
}

}  // namespace smp::d2d
