// d2d/frame_codec.h: a frame as one control buffer plus the tensors that travel beside it.
// Paper: App. G.1 (tensor stubs). Threads: any; nothing is kept between calls.
//
// Tensors of a device are described as others are; what is said of elements in control buffers
// holds for the copies of those that travel through host memory.
//
// Control buffer, little endian: prefix (32 bytes) | a stub for each tensor (16 bytes) | their
// sizes (8 bytes each) | header | body | inline tensors, each on a 16-byte boundary. Gaps are zero,
// so that equal frames are equal bytes. Everything read is checked before memory is set aside for
// it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "d2d/byte_buffer.h"
#include "d2d/wire.h"
#include "smp/rank.h"

namespace smp::d2d {

class Loans;

/// Tensors up to this size travel inside the control buffer, larger ones on the data plane.
inline constexpr std::size_t kInlineBytes = 4096;

/// Who within a rank a frame is for.
enum class Port : std::uint8_t { kServer, kCollectives };
inline constexpr std::size_t kPorts = 2;

/// A frame before it is sent. Nothing is owned.
struct FrameToSend {
  Port port;
  std::span<const std::byte> header;
  std::string_view body;
  c10::ArrayRef<at::Tensor> tensors;
};

/// A tensor of a frame whose elements travel on the data plane.
struct DataTensor {
  std::size_t index;    ///< in the frame
  TransferId transfer;  ///< its number, counted by the sender
  std::uint8_t wire;    ///< that carries it, by its number among the sender's wires
  MemoryKind kind;      ///< of its memory, on both sides
  at::Tensor tensor;    ///< contiguous; sender: what to send, receiver: where to put it
};

/// A tensor of a device that travels through host memory: no wire reaches its own.
struct StagedTensor {
  std::size_t index;  ///< in the frame
  c10::DeviceType device;
};

/// A frame as it stands in a control buffer, which header and body lie in.
struct ReadFrame {
  Port port;
  std::span<const std::byte> header;
  std::span<const std::byte> body;
  std::vector<at::Tensor> tensors;
  std::vector<StagedTensor> staged;  ///< to be moved to their devices once all has come
};

/// Of memory on `device`; nothing: no wire reaches any such memory.
std::optional<MemoryKind> memory_kind(c10::DeviceType device) noexcept;

/// Where tensors of a frame are lent by or borrowed from; nobody: `loans` is nullptr.
struct Lending {
  Loans* loans = nullptr;
  GlobalRank peer{};  ///< who borrows or lends
};

/// What a control buffer may make the receiver set aside.
struct FrameLimits {
  std::uint64_t tensor_bytes = std::uint64_t{1} << 40;  ///< all data-plane tensors of one frame
};

/// Writes header, body, stubs and small tensors of `frame` to `control`; its other tensors are
/// lent, or go to `data` (cleared first) without history, numbered on from `next_transfer`, to be
/// sent by one of `wires`. All tensors of a device travel there, whatever their size, so that the
/// host need not wait for them; where no wire reaches its memory, or it is not that of home
/// (base/home_device.h), it is copied to host memory first.
/// @throws UsageError        the control buffer passes 1 GiB.
/// @throws UnsupportedError  a tensor is of a kind that cannot be sent.
void encode_frame(const FrameToSend& frame, const DataWires& wires, TransferId& next_transfer,
                  ByteBuffer& control, std::vector<DataTensor>& data, Loans* loans = nullptr);

/// The frame in `control`, with new and with borrowed tensors; those still to be filled go to
/// `data` (cleared first). Those of a device are at home.
/// @throws InternalError     malformed: cut, altered, or of another version of this library.
/// @throws UnsupportedError  LibTorch has no such device here.
ReadFrame decode_frame(std::span<const std::byte> control, std::vector<DataTensor>& data,
                       const FrameLimits& limits = {}, const Lending& lending = {});

}  // namespace smp::d2d
