// d2d/wires/ofi/ofi_outbox.h: what an OfiWire has to say to one rank, frame by frame.
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "d2d/wire/byte_buffer.h"
#include "d2d/wires/ofi/ofi_frame.h"

namespace smp::d2d {

/// The messages to one rank in the order they were put, in as many frames as they need. The last
/// frame of a message goes only when all transfers that were received before have been told.
class OfiOutbox {
 public:
  /// A frame to send: the bytes before its trailer, and the trailer without secret and source.
  struct Frame {
    std::size_t bytes = 0;
    OfiTrailer trailer;
  };

  void put(OfiFrameKind kind, ByteBuffer&& bytes = {});
  /// Notes that `transfer` has been received as a whole, which the next frames say.
  void tell(TransferId transfer) { received_.push_back(transfer); }
  std::size_t untold() const noexcept { return received_.size(); }

  /// True if no message is left to be sent.
  bool empty() const noexcept { return messages_.empty(); }
  /// Writes the next frame into `memory`, which has room for a trailer more; there must be a
  /// message.
  Frame write_next(std::span<std::byte> memory) const;
  /// Notes that the frame is being sent. Returns true if it was the last one of its message, whose
  /// buffer goes back to `pool`.
  bool pass(const Frame& frame, BufferPool& pool);

 private:
  struct Message {
    OfiFrameKind kind = OfiFrameKind::kControl;
    ByteBuffer bytes;
    std::size_t done = 0;
  };

  std::deque<Message> messages_;     // not started, or not all of the first
  std::deque<TransferId> received_;  // which the peer has not been told
  std::uint64_t next_number_ = 0;
};

}  // namespace smp::d2d
