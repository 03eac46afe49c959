// d2d/wires/ofi/ofi_inbox.h: what one rank has sent to an OfiWire, in order and put together again.
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "d2d/wire/byte_buffer.h"
#include "d2d/wire/in_order.h"
#include "d2d/wires/ofi/ofi_frame.h"
#include "smp/rank.h"

namespace smp::d2d {

/// The frames of one rank, which come in any order, each once, and are taken in that of their
/// numbers. A frame may have to wait for transfers that it says were received.
class OfiInbox {
 public:
  explicit OfiInbox(GlobalRank source) : source_(source) {}

  /// Keeps `frame`, which makes sense (ofi_frame.h). Returns false, and drops it, if its number has
  /// been there or is too far ahead.
  [[nodiscard]] bool put(ByteBuffer&& frame);
  /// Returns the number of the frame that is to be taken next.
  std::uint64_t next() const noexcept { return frames_.next(); }
  /// True if that frame has come.
  bool has_next() const noexcept { return frames_.ready(); }
  OfiFrameKind next_kind() const;

  /// Asks `must_wait(TransferId)`, once, about each transfer that the next frame says was received;
  /// if true, the frame waits until is_over() was called for it.
  template <class MustWait>
  void note_received(MustWait&& must_wait);
  bool waits() const noexcept { return awaited_ > 0; }
  /// Notes the end of one transfer that the next frame waits for. Returns true if it was the last.
  bool is_over() noexcept { return --awaited_ == 0; }

  /// Takes the next frame, which is there and does not wait. Returns the message that it completes,
  /// if it does: all control bytes, where they lie if they came in one frame. Other buffers go back
  /// to `pool`.
  /// @throws InternalError  it does not go on with the message of the last one
  std::optional<ByteBuffer> take(BufferPool& pool);

 private:
  bool append(std::span<const std::byte> part, const OfiTrailer& trailer);

  GlobalRank source_;
  InOrder<ByteBuffer> frames_;
  bool is_noted_ = false;    // what the next frame says was received
  std::size_t awaited_ = 0;  // of that, what is not over
  ByteBuffer message_;       // of which a part has come
  std::size_t arrived_ = 0;  // bytes of that part
};

template <class MustWait>
void OfiInbox::note_received(MustWait&& must_wait) {
  if (is_noted_) return;
  is_noted_ = true;
  const auto frame = frames_.front().span();
  const std::size_t count = trailer_of(frame).received;
  const auto* id = frame.data() + frame.size() - sizeof(OfiTrailer) - count * sizeof(TransferId);
  for (std::size_t i = 0; i < count; ++i, id += sizeof(TransferId)) {
    TransferId received;
    std::memcpy(&received, id, sizeof received);
    if (must_wait(received)) ++awaited_;
  }
}

}  // namespace smp::d2d
