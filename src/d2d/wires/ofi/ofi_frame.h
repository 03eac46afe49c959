// d2d/wires/ofi/ofi_frame.h: what the messages of an OfiWire look like. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "d2d/wire/wire.h"

namespace smp::d2d {

enum class OfiFrameKind : std::uint8_t {
  kControl,  ///< control bytes, or a part of them
  kGrants,   ///< OfiGrants; has no number, and is read as soon as it comes
  kGoodbye,  ///< the last with a number
  kNothing,  ///< but what was received, and that the receiver is still there if it takes it
};

/// The end of each frame, so that the control bytes before it can be handed on where they lie.
/// Between the two: the numbers of transfers that the sender of the frame has received as a whole.
struct OfiTrailer {
  std::uint64_t secret = 0;         ///< of the job
  std::uint64_t number = 0;         ///< counts the frames of one rank to another
  std::uint64_t message_bytes = 0;  ///< kControl: of all parts
  std::uint32_t source = 0;         ///< position of the sender
  std::uint16_t received = 0;       ///< TransferIds before the trailer
  OfiFrameKind kind = OfiFrameKind::kControl;
  std::uint8_t last = 1;  ///< kControl: 1 for the last part, else 0; no bool: others write it
};

/// Lets the sender of a transfer write it to its place at the receiver.
struct OfiGrant {
  TransferId id = 0;
  std::uint64_t address = 0;
  std::uint64_t key = 0;
  std::uint64_t bytes = 0;
  std::uint32_t segment = 0;  ///< bytes of each write; less in the last
  std::uint32_t receive = 0;  ///< the immediate of each write
};

/// Returns the number of writes that carry `bytes`.
inline std::size_t segments_of(std::size_t bytes, std::size_t segment) {
  return (bytes + segment - 1) / segment;
}

/// Returns the number of transfers that a frame of `bytes` bytes can name.
constexpr std::size_t most_received_in(std::size_t bytes) {
  return (bytes - sizeof(OfiTrailer)) / sizeof(TransferId);
}

/// The most bytes of control data in one message; a longer one is none of ours.
inline constexpr std::uint64_t kLongestOfiMessage = std::uint64_t{1} << 30;

/// Returns the trailer of a received frame; `bytes` holds one at least.
[[nodiscard]] OfiTrailer trailer_of(std::span<const std::byte> bytes);

/// True if the sender of the frame knows the job's secret.
[[nodiscard]] bool is_of_job(std::span<const std::byte> frame, std::uint64_t secret);

/// True if another of `ranks` ranks, which is not at position `own`, may have written the frame:
/// all that it counts is there, and no more.
[[nodiscard]] bool makes_sense(std::span<const std::byte> frame, int ranks, int own);

}  // namespace smp::d2d
