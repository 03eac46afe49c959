// d2d/wires/ofi/ofi_outbox.cpp: see the header.
#include "d2d/wires/ofi/ofi_outbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace smp::d2d {

void OfiOutbox::put(OfiFrameKind kind, ByteBuffer&& bytes) {
  messages_.push_back({kind, std::move(bytes), 0});
}

OfiOutbox::Frame OfiOutbox::write_next(std::span<std::byte> memory) const {
  const auto& message = messages_.front();
  const std::size_t received = std::min(received_.size(), most_received_in(memory.size()));
  const std::size_t room = memory.size() - sizeof(OfiTrailer) - received * sizeof(TransferId);
  const std::size_t part = std::min(message.bytes.size() - message.done, room);
  if (part > 0) std::memcpy(memory.data(), message.bytes.span().data() + message.done, part);
  for (std::size_t i = 0; i < received; ++i) {
    std::memcpy(memory.data() + part + i * sizeof(TransferId), &received_[i], sizeof(TransferId));
  }
  Frame frame{part + received * sizeof(TransferId), {}};
  frame.trailer.number = next_number_;
  frame.trailer.message_bytes = message.bytes.size();
  frame.trailer.received = static_cast<std::uint16_t>(received);
  frame.trailer.kind = message.kind;
  frame.trailer.last = received == received_.size() && message.done + part == message.bytes.size();
  return frame;
}

bool OfiOutbox::pass(const Frame& frame, BufferPool& pool) {
  ++next_number_;
  received_.erase(received_.begin(), received_.begin() + frame.trailer.received);
  auto& message = messages_.front();
  message.done += frame.bytes - frame.trailer.received * sizeof(TransferId);
  if (!frame.trailer.last) return false;
  pool.give(std::move(message.bytes));
  messages_.pop_front();
  return true;
}

}  // namespace smp::d2d
