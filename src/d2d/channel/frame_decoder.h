// d2d/channel/frame_decoder.h: a control buffer becomes a frame. All that is read is checked before
// memory is set aside for it. Threads: any; nothing is kept between calls.
//
// Tensors of a device are described as others are; what is said of elements in control buffers
// holds for the copies of those that travel through host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "d2d/channel/frame.h"
#include "smp/rank.h"

namespace smp::d2d {

class Loans;

/// The table of loans, and the rank that borrows or lends the tensors of a frame; without loans:
/// nullptr.
struct Lending {
  Loans* loans = nullptr;
  GlobalRank peer{};  ///< who borrows or lends
};

/// The limits on the memory that a control buffer may make the receiver set aside.
struct FrameLimits {
  std::uint64_t tensor_bytes = std::uint64_t{1} << 40;  ///< all data-plane tensors of one frame
};

/// Decodes the frame in `control`, with new and with borrowed tensors; those still to be filled go
/// to `data` (cleared first). Tensors of a device are made on the home device
/// (base/machine/home_device.h).
/// @throws InternalError     malformed: cut, altered, or of another version of this library.
/// @throws UnsupportedError  LibTorch has no such device here.
ReadFrame decode_frame(std::span<const std::byte> control, std::vector<DataTensor>& data,
                       const FrameLimits& limits = {}, const Lending& lending = {});

}  // namespace smp::d2d
