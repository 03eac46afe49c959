// d2d/wires/neuron/neuron_send_receive_wire.cpp: see the header.
#include "d2d/wires/neuron/neuron_send_receive_wire.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "d2d/wires/labelled_bytes.h"
#include "smp/error.h"

namespace smp::d2d {

/// Takes what comes over the other wire.
class NeuronSendReceiveWire::Inbox final : public WireHandler {
 public:
  explicit Inbox(NeuronSendReceiveWire& wire) : wire_(wire) {}
  void on_control(GlobalRank source, ByteBuffer&& bytes) override {
    wire_.on_message(source, std::move(bytes));
  }
  void on_sent(Token) override {}
  void on_received(Token) override {}

 private:
  NeuronSendReceiveWire& wire_;
};

NeuronSendReceiveWire::NeuronSendReceiveWire(std::unique_ptr<Wire> messages,
                                             std::unique_ptr<NeuronSendReceive> core,
                                             const NeuronPlaces& places,
                                             const NeuronSendReceiveOptions& options)
    : Wire(messages->rank(), messages->members()),
      messages_(std::move(messages)),
      places_(places),
      options_(options),
      core_(std::move(core)),
      inbox_(std::make_unique<Inbox>(*this)),
      peers_(static_cast<std::size_t>(members().size())) {
  options_.at_once = std::max(1, std::min(options_.at_once, core_->most_pending()));
  messages_->set_handler(inbox_.get());
}

NeuronSendReceiveWire::~NeuronSendReceiveWire() { messages_->set_handler(nullptr); }

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

void NeuronSendReceiveWire::tell(GlobalRank to, MessageKind kind, const Message& message) {
  post_labelled(*messages_, to, std::as_bytes(std::span(&message, 1)), kind);
}

void NeuronSendReceiveWire::post(GlobalRank to, ByteBuffer&& control) {
  post_labelled(*messages_, to, control.span(), MessageKind::kControl);
  messages_->buffers().give(std::move(control));
}

void NeuronSendReceiveWire::on_message(GlobalRank source, ByteBuffer&& bytes) {
  const auto kind = take_label<MessageKind>(bytes, rank(), source);
  if (kind == MessageKind::kControl) {
    return peer(source).held.push_back(std::move(bytes));
  }
  Message message;
  SMP_ASSERT((kind == MessageKind::kTransfer || kind == MessageKind::kPosted ||
              kind == MessageKind::kArrived) &&
                 bytes.size() == sizeof message,
             "rank ", rank(), ": rank ", source, " sent a message of kind ",
             static_cast<std::uint32_t>(kind), " and ", bytes.size(), " bytes");
  std::memcpy(&message, bytes.data(), sizeof message);
  messages_->buffers().give(std::move(bytes));
  if (kind == MessageKind::kTransfer) return on_announced(source, message);
  if (kind == MessageKind::kPosted) return on_posted(source, message);
  auto& from = peer(source);
  SMP_ASSERT(message.number == from.arrived && message.number < from.out.posted, "rank ", rank(),
             ": rank ", source, " has got transfer ", message.id, " as number ", message.number,
             "; the next is ", from.arrived, " of ", from.out.posted);
  ++from.arrived;
}

bool NeuronSendReceiveWire::may_post(const Way& way) const noexcept {
  return way.is_connected && !way.ready.empty() &&
         way.pending.size() < static_cast<std::size_t>(options_.at_once);
}

// ---- sending -----------------------------------------------------------------------------------

void NeuronSendReceiveWire::send(std::span<const std::byte> bytes, GlobalRank to, TransferId id,
                                 Token token) {
  peer(to).out.named.push_back({places_.require(bytes), bytes.size(), id, token});
  completions_.begin_send();
  tell(to, MessageKind::kTransfer, {id, bytes.size()});
}

/// The receiver is ready for a transfer: it is the next that is sent to it.
void NeuronSendReceiveWire::on_posted(GlobalRank source, const Message& message) {
  auto& out = peer(source).out;
  const auto found =
      std::find_if(out.named.begin(), out.named.end(),
                   [&](const Transfer& transfer) { return transfer.id == message.id; });
  const auto next = out.posted + out.ready.size();
  SMP_ASSERT(found != out.named.end() && message.number == next, "rank ", rank(), ": rank ", source,
             " receives transfer ", message.id, " as number ", message.number, "; the next is ",
             next, found == out.named.end() ? ", and no such transfer is sent" : "");
  out.ready.push_back(*found);
  *found = out.named.back();
  out.named.pop_back();
}

bool NeuronSendReceiveWire::post_sends(Peer& to) {
  bool moved = false;
  while (may_post(to.out)) {
    auto& transfer = to.out.ready.front();
    const auto request = core_->send(to.out.communicator, transfer.place, transfer.size,
                                     doing("sending ", transfer, to));
    if (!request) break;
    transfer.request = *request;
    transfer.posted = clock_.now();
    transfer.number = to.out.posted;
    to.out.pending.push_back(transfer);
    to.out.ready.pop_front();
    ++to.out.posted;
    ++under_way_;
    moved = true;
  }
  return moved;
}

bool NeuronSendReceiveWire::end_sends(Peer& to) {
  bool moved = false;
  for (std::size_t i = 0; i < to.out.pending.size();) {
    Transfer transfer = to.out.pending[i];
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
    completions_.note_sent(transfer.token);
    to.out.pending[i] = to.out.pending.back();
    to.out.pending.pop_back();
    --under_way_;
    moved = true;
  }
  return moved;
}

// ---- receiving ---------------------------------------------------------------------------------

void NeuronSendReceiveWire::receive(std::span<std::byte> bytes, GlobalRank from, TransferId id,
                                    Token token) {
  auto& source = peer(from);
  const Transfer transfer{places_.require(bytes), bytes.size(), id, token};
  const auto told = std::find_if(source.announced.begin(), source.announced.end(),
                                 [&](const Message& message) { return message.id == id; });
  if (told == source.announced.end()) return source.in.named.push_back(transfer);
  announce(source, transfer, told->number);
  *told = source.announced.back();
  source.announced.pop_back();
}

void NeuronSendReceiveWire::on_announced(GlobalRank source, const Message& message) {
  auto& from = peer(source);
  const auto named =
      std::find_if(from.in.named.begin(), from.in.named.end(),
                   [&](const Transfer& transfer) { return transfer.id == message.id; });
  if (named == from.in.named.end()) return from.announced.push_back(message);
  announce(from, *named, message.number);
  *named = from.in.named.back();
  from.in.named.pop_back();
}

/// Both sides have named a transfer. What happens to one of two lengths nobody says, so it is not
/// begun.
void NeuronSendReceiveWire::announce(Peer& from, const Transfer& transfer, std::uint64_t size) {
  SMP_ASSERT(transfer.size == size, "rank ", rank(), ": receiving ", transfer.size, " bytes from ",
             from.name, " as transfer ", transfer.id, ", which sent ", size);
  from.in.ready.push_back(transfer);
}

bool NeuronSendReceiveWire::post_receives(GlobalRank rank, Peer& from) {
  bool moved = false;
  while (may_post(from.in)) {
    auto& transfer = from.in.ready.front();
    const auto request = core_->receive(from.in.communicator, transfer.place, transfer.size,
                                        doing("receiving ", transfer, from));
    if (!request) break;
    transfer.request = *request;
    transfer.number = from.in.posted;
    tell(rank, MessageKind::kPosted, {transfer.id, from.in.posted});
    from.in.pending.push_back(transfer);
    from.in.ready.pop_front();
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
    const Transfer transfer = pending.front();
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
    completions_.note_received(received.token);
    tell(received.from, MessageKind::kArrived, received.message);
  }
  under_way_ -= unflushed_.size();
  unflushed_.clear();
}

/// True while a request of this rank has not ended of which the peer has got all.
bool NeuronSendReceiveWire::is_behind(const Peer& to) const noexcept {
  return std::any_of(to.out.pending.begin(), to.out.pending.end(),
                     [&](const Transfer& transfer) { return transfer.number < to.arrived; });
}

/// Hands on control bytes, each after the ends of what it may answer.
bool NeuronSendReceiveWire::hand_on_held() {
  bool moved = false;
  for (const GlobalRank member : members()) {
    if (member == rank()) continue;
    auto& other = peer(member);
    while (!other.held.empty() && !is_behind(other)) {
      auto bytes = std::move(other.held.front());
      other.held.pop_front();
      while (completions_.tell(handler())) continue;
      handler().on_control(member, std::move(bytes));
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
  if (moved || messages_->take_stir()) note_stir();
  return moved;
}

bool NeuronSendReceiveWire::complete() {
  advance();
  bool told = false;
  while (completions_.tell(handler())) told = true;
  return told;
}

bool NeuronSendReceiveWire::poll() {
  bool moved = advance();
  moved |= messages_->poll();
  moved |= advance();
  moved |= hand_on_held();
  moved |= completions_.tell(handler());
  return moved;
}

bool NeuronSendReceiveWire::drained() const noexcept {
  return completions_.sends() == 0 && messages_->drained();
}

/// Leaves once everything is connected and nothing is under way: else the runtime could not end.
/// Who has come may still be sent something.
bool NeuronSendReceiveWire::leave() {
  if (!leaving_) {
    if (!drained() || unconnected_ > 0) return false;
    leaving_ = true;
  }
  if (!messages_->leave() || under_way_ > 0) return false;
  core_->close();
  return true;
}

}  // namespace smp::d2d
