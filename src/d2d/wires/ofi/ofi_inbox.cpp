// d2d/wires/ofi/ofi_inbox.cpp: see the header.
#include "d2d/wires/ofi/ofi_inbox.h"

#include <utility>

#include "base/check.h"

namespace smp::d2d {

bool OfiInbox::put(ByteBuffer&& frame) {
  const auto number = trailer_of(frame.span()).number;
  return frames_.put(number, std::move(frame));
}

OfiFrameKind OfiInbox::next_kind() const { return trailer_of(frames_.front().span()).kind; }

std::optional<ByteBuffer> OfiInbox::take(BufferPool& pool) {
  auto frame = *frames_.take();
  is_noted_ = false;
  const auto trailer = trailer_of(frame.span());
  const std::size_t bytes = frame.size() - sizeof trailer - trailer.received * sizeof(TransferId);
  const bool is_control = trailer.kind == OfiFrameKind::kControl;
  if (is_control && trailer.last && arrived_ == 0 && bytes == trailer.message_bytes) {
    frame.resize(bytes);
    return frame;
  }
  const bool is_whole = is_control && append(frame.span().first(bytes), trailer);
  pool.give(std::move(frame));
  if (!is_whole) return std::nullopt;
  return std::exchange(message_, {});
}

/// Appends a part of a message. Returns true if the message is complete.
bool OfiInbox::append(std::span<const std::byte> part, const OfiTrailer& trailer) {
  if (arrived_ == 0) message_.resize(trailer.message_bytes);
  const auto all = arrived_ + part.size();
  const auto size = message_.size();
  SMP_ASSERT(trailer.message_bytes == size && (trailer.last ? all == size : all <= size), "rank ",
             source_, " sent ", all, " bytes of a message of ", size, ", then of ",
             trailer.message_bytes);
  if (!part.empty()) std::memcpy(message_.data() + arrived_, part.data(), part.size());
  arrived_ = trailer.last ? 0 : all;
  return trailer.last;
}

}  // namespace smp::d2d
