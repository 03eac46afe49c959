// d2d/channel/frame_layout.h: a frame in a control buffer, byte by byte (README.md beside this).
//
// Little endian: prefix (32 bytes) | a stub for each tensor (16 bytes) | their sizes (8 bytes each)
// | header | body | inline tensors, each on a 16-byte boundary. Gaps are zero, so that equal frames
// are equal bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace smp::d2d {

static_assert(std::endian::native == std::endian::little, "control buffers are little endian");

inline constexpr std::uint32_t kFrameMagic =
    0x33504d53;  // "SMP3": the last digit is the layout's version
inline constexpr std::size_t kFrameAlignment = 16;
inline constexpr std::size_t kLongestControl = std::size_t{1} << 30;
inline constexpr std::size_t kMostDimensions = 64;  // as in LibTorch's iterators

struct FramePrefix {
  std::uint32_t magic;
  std::uint32_t tensors;
  std::uint64_t header_bytes;
  std::uint64_t body_bytes;
  std::uint32_t dimensions;  // of all tensors
  std::uint8_t port;
  std::uint8_t zero[3];
};
static_assert(sizeof(FramePrefix) == 32);

/// The place of the elements of a tensor.
enum class TensorPlace : std::uint8_t { kUndefined, kInline, kData, kLent };

/// The description of one tensor in a control buffer.
struct TensorStub {
  // Inline: bytes from the start of the inline section; data: the transfer; lent: the loan.
  std::uint64_t where;
  std::uint8_t place;
  std::uint8_t dtype;  // a c10::ScalarType
  std::uint8_t dimensions;
  std::uint8_t wire;
  std::uint8_t device;  // a c10::DeviceType
  std::uint8_t staged;  // 1: it comes through host memory
  std::uint8_t zero[2];
};
static_assert(sizeof(TensorStub) == 16);

constexpr std::size_t aligned_in_frame(std::size_t bytes) {
  return (bytes + kFrameAlignment - 1) & ~(kFrameAlignment - 1);
}

/// The offsets at which the parts of a control buffer begin.
struct FrameLayout {
  std::size_t sizes, header, body, end_of_body, inline_section;

  explicit FrameLayout(const FramePrefix& prefix)
      : sizes(sizeof(FramePrefix) + sizeof(TensorStub) * prefix.tensors),
        header(sizes + sizeof(std::int64_t) * prefix.dimensions),
        body(header + prefix.header_bytes),
        end_of_body(body + prefix.body_bytes),
        inline_section(aligned_in_frame(end_of_body)) {}
};

}  // namespace smp::d2d
