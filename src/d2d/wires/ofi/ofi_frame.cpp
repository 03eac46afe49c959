// d2d/wires/ofi/ofi_frame.cpp: see the header.
#include "d2d/wires/ofi/ofi_frame.h"

#include <cstring>

namespace smp::d2d {

OfiTrailer trailer_of(std::span<const std::byte> bytes) {
  OfiTrailer trailer;
  std::memcpy(&trailer, bytes.data() + bytes.size() - sizeof trailer, sizeof trailer);
  return trailer;
}

bool is_of_job(std::span<const std::byte> frame, std::uint64_t secret) {
  return frame.size() >= sizeof(OfiTrailer) && trailer_of(frame).secret == secret;
}

bool makes_sense(std::span<const std::byte> frame, int ranks, int own) {
  if (frame.size() < sizeof(OfiTrailer)) return false;
  const auto trailer = trailer_of(frame);
  const std::size_t received = trailer.received * sizeof(TransferId);
  const std::size_t room = frame.size() - sizeof trailer;
  if (trailer.source >= static_cast<std::uint32_t>(ranks) ||
      trailer.source == static_cast<std::uint32_t>(own) || received > room || trailer.last > 1) {
    return false;
  }
  const std::size_t bytes = room - received;
  switch (trailer.kind) {
    case OfiFrameKind::kControl:
      return bytes <= trailer.message_bytes && trailer.message_bytes <= kLongestOfiMessage;
    case OfiFrameKind::kGrants:
      return received == 0 && bytes > 0 && bytes % sizeof(OfiGrant) == 0;
    case OfiFrameKind::kGoodbye:
    case OfiFrameKind::kNothing:
      return bytes == 0;
  }
  return false;
}

}  // namespace smp::d2d
