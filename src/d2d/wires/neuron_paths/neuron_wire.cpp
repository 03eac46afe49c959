// d2d/wires/neuron_paths/neuron_wire.cpp: see the header.
#include "d2d/wires/neuron_paths/neuron_wire.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "d2d/wires/labelled_bytes.h"

namespace smp::d2d {

/// Takes what comes over the other wire.
class NeuronWire::Inbox final : public WireHandler {
 public:
  explicit Inbox(NeuronWire& wire) : wire_(wire) {}
  void on_control(GlobalRank source, ByteBuffer&& bytes) override {
    wire_.on_message(source, std::move(bytes));
  }
  void on_sent(Token token) override { wire_.on_bytes_sent(token); }
  void on_received(Token token) override { wire_.on_bytes_received(token); }

 private:
  NeuronWire& wire_;
};

NeuronWire::NeuronWire(std::unique_ptr<Wire> messages, const NeuronPlaces& places)
    : Wire(messages->rank(), messages->members()),
      messages_(std::move(messages)),
      places_(places),
      inbox_(std::make_unique<Inbox>(*this)),
      peers_(static_cast<std::size_t>(members().size())) {
  messages_->set_handler(inbox_.get());
}

NeuronWire::~NeuronWire() { drop_messages(); }

void NeuronWire::drop_messages() noexcept {
  if (messages_ != nullptr) messages_->set_handler(nullptr);
  messages_.reset();
}

// ---- messages ----------------------------------------------------------------------------------

void NeuronWire::tell(GlobalRank to, std::uint32_t kind, const Message& message) {
  post_labelled(*messages_, to, std::as_bytes(std::span(&message, 1)), kind);
}

void NeuronWire::post(GlobalRank to, ByteBuffer&& control) {
  post_labelled(*messages_, to, control.span(), std::uint32_t{kControl});
  messages_->buffers().give(std::move(control));
}

void NeuronWire::on_message(GlobalRank source, ByteBuffer&& bytes) {
  const auto kind = take_label<std::uint32_t>(bytes, rank(), source);
  if (kind == kControl) return on_control(source, std::move(bytes));
  Message message;
  const auto size = bytes.size();
  if (size == sizeof message) std::memcpy(&message, bytes.data(), sizeof message);
  messages_->buffers().give(std::move(bytes));
  if (size == sizeof message && kind == kTransfer) return on_announced(source, message);
  SMP_ASSERT(size == sizeof message && on_told(source, kind, message), "rank ", rank(), ": rank ",
             source, " sent a message of kind ", kind, " and ", size, " bytes");
}

void NeuronWire::hand_on_control(GlobalRank source, ByteBuffer&& bytes) {
  while (completions_.tell(handler())) continue;  // an answer tells that what it answers has left
  handler().on_control(source, std::move(bytes));
}

// ---- transfers ---------------------------------------------------------------------------------

void NeuronWire::send(std::span<const std::byte> bytes, GlobalRank to, TransferId id, Token token) {
  on_send(to, {places_.require(bytes), bytes.size(), id, token});
  completions_.begin_send();
  tell(to, kTransfer, {id, bytes.size()});
}

void NeuronWire::receive(std::span<std::byte> bytes, GlobalRank from, TransferId id, Token token) {
  auto& source = peer(from);
  const Transfer transfer{places_.require(bytes), bytes.size(), id, token};
  const auto told = std::find_if(source.announced.begin(), source.announced.end(),
                                 [&](const Message& message) { return message.id == id; });
  if (told == source.announced.end()) return source.named.push_back(transfer);
  const auto size = told->number;
  *told = source.announced.back();
  source.announced.pop_back();
  match(from, transfer, size);
}

void NeuronWire::on_announced(GlobalRank source, const Message& message) {
  auto& from = peer(source);
  const auto named =
      std::find_if(from.named.begin(), from.named.end(),
                   [&](const Transfer& transfer) { return transfer.id == message.id; });
  if (named == from.named.end()) return from.announced.push_back(message);
  const auto transfer = *named;
  *named = from.named.back();
  from.named.pop_back();
  match(source, transfer, message.number);
}

void NeuronWire::match(GlobalRank from, const Transfer& transfer, std::uint64_t size) {
  SMP_ASSERT(transfer.size == size, "rank ", rank(), ": receiving ", transfer.size,
             " bytes from rank ", from, " as transfer ", transfer.id, ", which sent ", size);
  on_matched(from, transfer);
}

// ---- what is done ------------------------------------------------------------------------------

bool NeuronWire::go_on() {
  const bool moved = advance();
  if (moved || messages_->take_stir()) note_stir();
  return moved;
}

bool NeuronWire::complete() {
  messages_->complete();
  go_on();
  bool told = false;
  while (completions_.tell(handler())) told = true;
  return told;
}

bool NeuronWire::poll() {
  bool moved = go_on();
  if (messages_->poll()) {
    go_on();
    moved = true;
  }
  moved |= hand_on_kept();
  moved |= completions_.tell(handler());
  return moved;
}

bool NeuronWire::drained() const noexcept {
  return completions_.sends() == 0 && messages_->drained();
}

bool NeuronWire::leave() {
  if (!leaving_) {
    if (!drained() || !may_leave()) return false;
    leaving_ = true;
  }
  return messages_->leave() && end();
}

}  // namespace smp::d2d
