// d2d/wires/local/local_wire.cpp: see the header.
#include "d2d/wires/local/local_wire.h"

#include <xxhash.h>

#include <cstring>
#include <memory>
#include <utility>

#include "base/check.h"

namespace smp::d2d {

LocalWire::LocalWire(std::shared_ptr<LocalHub> hub, GlobalRank rank)
    : LocalWire(hub, rank, Members::all(hub->size())) {}

LocalWire::LocalWire(std::shared_ptr<LocalHub> hub, GlobalRank rank, Members members)
    : Wire(rank, std::move(members)),
      hub_(std::move(hub)),
      space_(hub_->open(rank, this->members())),
      position_(this->members().position(rank)) {}

LocalWire::~LocalWire() { close_end(); }

// ---- sending ----

// What an event needs outlives the wire that made it.
template <class Message>
void LocalWire::carry(base::Nanoseconds arrival, int destination, Message&& message) {
  auto carried = std::make_shared<Message>(std::move(message));  // events can be copied
  hub_->options_.clock->at(arrival, [space = space_, destination, carried] {
    space->arrive(destination, std::move(*carried));
  });
}

void LocalWire::post(GlobalRank peer, ByteBuffer&& bytes) {
  if (hub_->loses_next()) return;
  ++own().in_flight;
  const int destination = members().position(peer);
  LocalHub::Control message{position_, std::move(bytes)};
  if (hub_->options_.clock == nullptr) return space_->arrive(destination, std::move(message));
  const base::Nanoseconds arrival = hub_->control_arrival(*space_, position_, destination);
  const std::uint64_t content = XXH3_64bits(message.bytes.data(), message.bytes.size());
  hub_->trace(*space_, position_, destination, arrival, content);
  carry(arrival, destination, std::move(message));
}

void LocalWire::send(std::span<const std::byte> bytes, GlobalRank peer, TransferId id,
                     Token token) {
  ByteBuffer copy = buffers().take();
  copy.resize(bytes.size());
  std::memcpy(copy.data(), bytes.data(), bytes.size());
  ++own().in_flight;
  const int destination = members().position(peer);
  LocalHub::Data data{{position_, id}, token, std::move(copy)};
  if (hub_->options_.clock == nullptr) return space_->arrive(destination, std::move(data));
  const base::Nanoseconds arrival = hub_->options_.clock->now() + hub_->delay();
  hub_->trace(*space_, position_, destination, arrival, bytes.size());
  carry(arrival, destination, std::move(data));
}

// ---- receiving ----

void LocalWire::receive(std::span<std::byte> bytes, GlobalRank peer, TransferId id, Token token) {
  const LocalHub::Transfer transfer{members().position(peer), id};
  own().receives.emplace(transfer, LocalHub::Posted{bytes, token});
  if (own().data.count(transfer) > 0) own().ready.push_back(transfer);
}

void LocalWire::hand_over(const LocalHub::Transfer& transfer) {
  ByteBuffer data = std::move(own().data.extract(transfer).mapped());
  const LocalHub::Posted posted = own().receives.extract(transfer).mapped();
  SMP_ASSERT(posted.bytes.size() == data.size(), "rank ", rank(), ": receiving ",
             posted.bytes.size(), " bytes of rank ", members()[transfer.first], ", which sent ",
             data.size());
  std::memcpy(posted.bytes.data(), data.data(), data.size());
  buffers().give(std::move(data));
  handler().on_received(posted.token);
}

bool LocalWire::complete() {
  const bool moved = !own().sent.empty() || !own().ready.empty();
  while (!own().sent.empty()) {  // the handler may start others
    const Token token = own().sent.front();
    own().sent.pop_front();
    --own().in_flight;
    handler().on_sent(token);
  }
  while (!own().ready.empty()) {
    const LocalHub::Transfer transfer = own().ready.front();
    own().ready.pop_front();
    hand_over(transfer);
  }
  return moved;
}

bool LocalWire::poll() {
  bool moved = complete();
  while (!own().control.empty()) {
    LocalHub::Control message = std::move(own().control.front());
    own().control.pop_front();
    --space_->end(message.source).in_flight;
    handler().on_control(members()[message.source], std::move(message.bytes));
    complete();
    moved = true;
  }
  return moved;
}

// ---- leaving ----

bool LocalWire::leave() {
  close_end();
  return true;
}

void LocalWire::close_end() noexcept {
  LocalHub::End& end = own();
  end.closed = true;
  for (const LocalHub::Control& message : end.control) --space_->end(message.source).in_flight;
  end.control.clear();
  end.data.clear();
  end.receives.clear();
  end.ready.clear();
}

}  // namespace smp::d2d
