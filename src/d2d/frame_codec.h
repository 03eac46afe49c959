// d2d/frame_codec.h: a frame as one control buffer plus the tensors that travel beside it.
// Paper: App. G.1 (tensor stubs). Threads: the rank's thread only.
//
// Control buffer: prefix | stubs (frame.proto) | header | padding | inline tensors, each on a
// 16-byte boundary. Everything read from the wire is checked before memory is set aside for it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "d2d/byte_buffer.h"
#include "d2d/transport.h"

namespace smp::d2d {

/// A tensor of a frame whose elements travel on the data plane.
struct DataTensor {
  std::size_t index;       ///< in Frame::tensors
  std::uint64_t transfer;  ///< its number, counted by the sender
  at::Tensor tensor;       ///< contiguous; sender: what to send, receiver: where to put it
};

/// What a control buffer may make the receiver set aside.
struct FrameLimits {
  std::uint64_t tensor_bytes = std::uint64_t{1} << 40;  ///< all data-plane tensors of one frame
};

/// Encodes and decodes frames; keeps its message objects and lists for the next frame.
class FrameCodec {
 public:
  explicit FrameCodec(FrameLimits limits = {});
  ~FrameCodec();

  /// Writes header, stubs and small tensors of `frame` to `control`; its other tensors go to
  /// `data` (cleared first), numbered on from `next_transfer`.
  /// @throws UsageError        a tensor is not on the CPU, or the control buffer passes 1 GiB.
  /// @throws UnsupportedError  a tensor is of a kind that cannot be sent.
  void encode(const Frame& frame, std::uint64_t& next_transfer, ByteBuffer& control,
              std::vector<DataTensor>& data);

  /// The frame in `control`, with new tensors; those still to be filled go to `data` (cleared
  /// first).
  /// @throws InternalError  malformed: cut, altered, or of another version of this library.
  Frame decode(std::span<const std::byte> control, std::vector<DataTensor>& data);

 private:
  struct Scratch;
  FrameLimits limits_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace smp::d2d
