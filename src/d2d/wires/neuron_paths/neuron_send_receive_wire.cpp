// d2d/wires/neuron_paths/neuron_send_receive_wire.cpp: see the header.
#include "d2d/wires/neuron_paths/neuron_send_receive_wire.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "smp/error.h"

namespace smp::d2d {

NeuronSendReceiveWire::NeuronSendReceiveWire(std::unique_ptr<Wire> messages,
                                             std::unique_ptr<NeuronSendReceive> core,
                                             const NeuronPlaces& places,
                                             const NeuronSendReceiveOptions& options)
    : NeuronWire(std::move(messages), places),
      options_(options),
      core_(std::move(core)),
      peers_(static_cast<std::size_t>(members().size())) {
  options_.at_once = std::max(1, std::min(options_.at_once, core_->most_pending()));
}

// ---- connecting --------------------------------------------------------------------------------

void NeuronSendReceiveWire::connect(const std::vector<NeuronAddress>& cores) {
  connect_until_ = clock_.now() + options_.connect_patience;
  for (const GlobalRank member : members()) {
    if (member == rank()) continue;
    auto& other = peer(member);
    const auto& address = cores[static_cast<std::size_t>(members().position(member))];
    other.name = base::concat("rank ", member, " (core ", address.core, " of ", address.ip, ")");
    other.out.communicator = core_->connect(address);
    other.in.communicator = core_->accept(address);
    unconnected_ += 2;
  }
}

bool NeuronSendReceiveWire::test_connections() {
  if (unconnected_ == 0) return false;
  const auto before = unconnected_;
  const Peer* missing = nullptr;
  for (auto& other : peers_) {
    for (auto* const way : {&other.out, &other.in}) {
      if (way->communicator == nullptr || way->is_connected) continue;
      way->is_connected = core_->is_connected(way->communicator, {"waiting for ", other.name});
      if (way->is_connected) {
        --unconnected_;
      } else {
        missing = &other;
      }
    }
  }
  SMP_REQUIRE_AS(PeerLostError, missing == nullptr || clock_.now() < connect_until_, "rank ",
                 rank(), ", Neuron core ", core_->core(), ": ", missing->name,
                 " has not connected within ", options_.connect_patience / base::kSecond,
                 " s; see its log, and whether EFA's security group lets all traffic between the "
                 "instances through.");
  return unconnected_ < before;
}

// ---- messages ----------------------------------------------------------------------------------

void NeuronSendReceiveWire::on_control(GlobalRank source, ByteBuffer&& bytes) {
  peer(source).held.push(std::move(bytes));
  ++held_;
}

bool NeuronSendReceiveWire::on_told(GlobalRank source, std::uint32_t kind, const Message& message) {
  if (kind == kPosted) return on_posted(source, message), true;
  if (kind != kArrived) return false;
  auto& from = peer(source);
  SMP_ASSERT(message.number == from.arrived && message.number < from.out.posted, "rank ", rank(),
             ": rank ", source, " has got transfer ", message.id, " as number ", message.number,
             "; the next is ", from.arrived, " of ", from.out.posted);
  ++from.arrived;
  return true;
}

bool NeuronSendReceiveWire::may_post(const Way& way) const noexcept {
  return way.is_connected && !way.ready.empty() &&
         way.pending.size() < static_cast<std::size_t>(options_.at_once);
}

// ---- sending -----------------------------------------------------------------------------------

void NeuronSendReceiveWire::on_send(GlobalRank to, const Transfer& transfer) {
  peer(to).named.push_back(transfer);
}

/// The receiver is ready for a transfer: it is the next that is sent to it.
void NeuronSendReceiveWire::on_posted(GlobalRank source, const Message& message) {
  auto& out = peer(source).out;
  auto& named = peer(source).named;
  const auto found = std::find_if(named.begin(), named.end(), [&](const Transfer& transfer) {
    return transfer.id == message.id;
  });
  const auto next = out.posted + out.ready.size();
  SMP_ASSERT(found != named.end() && message.number == next, "rank ", rank(), ": rank ", source,
             " receives transfer ", message.id, " as number ", message.number, "; the next is ",
             next, found == named.end() ? ", and no such transfer is sent" : "");
  out.ready.push(*found);
  *found = named.back();
  named.pop_back();
}

bool NeuronSendReceiveWire::post_sends(Peer& to) {
  bool moved = false;
  while (may_post(to.out)) {
    const auto& transfer = to.out.ready.front();
    const auto request = core_->send(to.out.communicator, transfer.place, transfer.size,
                                     doing("sending ", transfer, to));
    if (!request) break;
    to.out.pending.push_back({to.out.ready.pop(), *request, clock_.now(), to.out.posted});
    ++to.out.posted;
    ++under_way_;
    moved = true;
  }
  return moved;
}

bool NeuronSendReceiveWire::end_sends(Peer& to) {
  bool moved = false;
  for (std::size_t i = 0; i < to.out.pending.size();) {
    const Moving transfer = to.out.pending[i];
    const auto sent = core_->test(transfer.request, doing("sending ", transfer, to));
    if (!sent) {
      const auto waited = clock_.now() - transfer.posted;
      SMP_REQUIRE_AS(PeerLostError, waited < options_.transfer_patience, "rank ", rank(),
                     ", Neuron core ", core_->core(), ": ", doing("sending ", transfer, to).text(),
                     " has not ended within ", waited / base::kSecond,
                     " s, though its receiver was ready: look at EFA, restart from a checkpoint.");
      ++i;
      continue;
    }
    SMP_ASSERT(*sent == transfer.size, doing("sending ", transfer, to).text(), ": ", *sent,
               " bytes moved");
    completions().note_sent(transfer.token);
    to.out.pending[i] = to.out.pending.back();
    to.out.pending.pop_back();
    --under_way_;
    moved = true;
  }
  return moved;
}

// ---- receiving ---------------------------------------------------------------------------------

void NeuronSendReceiveWire::on_matched(GlobalRank from, const Transfer& transfer) {
  peer(from).in.ready.push(transfer);
}

bool NeuronSendReceiveWire::post_receives(GlobalRank rank, Peer& from) {
  bool moved = false;
  while (may_post(from.in)) {
    const auto& transfer = from.in.ready.front();
    const auto request = core_->receive(from.in.communicator, transfer.place, transfer.size,
                                        doing("receiving ", transfer, from));
    if (!request) break;
    tell(rank, kPosted, {transfer.id, from.in.posted});
    from.in.pending.push_back({from.in.ready.pop(), *request, 0, from.in.posted});
    ++from.in.posted;
    ++under_way_;
    moved = true;
  }
  return moved;
}

bool NeuronSendReceiveWire::end_receives(GlobalRank rank, Peer& from) {
  bool moved = false;
  auto& pending = from.in.pending;
  while (!pending.empty()) {  // in order, as the sender is told
    const Moving transfer = pending.front();
    const auto received = core_->test(transfer.request, doing("receiving ", transfer, from));
    if (!received) break;
    SMP_ASSERT(*received == transfer.size, doing("receiving ", transfer, from).text(), ": ",
               *received, " bytes moved");
    unflushed_.push_back({rank, transfer.token, {transfer.id, transfer.number}});
    pending.erase(pending.begin());
    moved = true;
  }
  return moved;
}

// ---- what is done ------------------------------------------------------------------------------

/// Receives that have ended count once their bytes are in memory.
void NeuronSendReceiveWire::flush() {
  if (unflushed_.empty()) return;
  core_->flush();
  for (const auto& received : unflushed_) {
    completions().note_received(received.token);
    tell(received.from, kArrived, received.message);
  }
  under_way_ -= unflushed_.size();
  unflushed_.clear();
}

/// True while a request of this rank has not ended of which the peer has got all.
bool NeuronSendReceiveWire::is_behind(const Peer& to) const noexcept {
  return std::any_of(to.out.pending.begin(), to.out.pending.end(),
                     [&](const Moving& transfer) { return transfer.number < to.arrived; });
}

/// Hands on control bytes, each after the ends of what it may answer.
bool NeuronSendReceiveWire::hand_on_kept() {
  if (held_ == 0) return false;
  bool moved = false;
  for (const GlobalRank member : members()) {
    if (member == rank()) continue;
    auto& other = peer(member);
    while (!other.held.empty() && !is_behind(other)) {
      --held_;
      hand_on_control(member, other.held.pop());
      moved = true;
    }
  }
  return moved;
}

bool NeuronSendReceiveWire::advance() {
  bool moved = test_connections();
  for (const GlobalRank member : members()) {
    if (member == rank()) continue;
    auto& other = peer(member);
    moved |= end_sends(other) | end_receives(member, other);
    moved |= post_receives(member, other) | post_sends(other);
  }
  flush();
  return moved;
}

/// Once nothing is under way: else the runtime could not end.
bool NeuronSendReceiveWire::end() {
  if (under_way_ > 0) return false;
  core_->close();
  return true;
}

}  // namespace smp::d2d
