// d2d/channel/frame.h: what one rank sends to another at once: a header, a body, and tensors.
// Paper: App. G.1 (tensor stubs).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "d2d/wire/wire.h"

namespace smp::d2d {

/// Tensors up to this size travel inside the control buffer, larger ones on the data plane.
inline constexpr std::size_t kInlineBytes = 4096;

/// The part of a rank that a frame is for.
enum class Port : std::uint8_t { kServer, kCollectives };
inline constexpr std::size_t kPorts = 2;

/// A frame before it is sent. It owns nothing.
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
  std::uint8_t wire;    ///< the wire that carries it, by its number among the sender's wires
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

}  // namespace smp::d2d
