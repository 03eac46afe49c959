// checkpoint/checksum.h: XXH64, which notices damage to files and differences between ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace smp::checkpoints {

/// The 64-bit xxHash (XXH64) of bytes that come in parts. It detects accidental damage, not
/// tampering.
class Checksum {
 public:
  explicit Checksum(std::uint64_t seed = 0) noexcept;

  Checksum& add(const void* data, std::size_t size) noexcept;
  /// Returns that of all bytes that were added.
  [[nodiscard]] std::uint64_t value() const noexcept;

 private:
  static constexpr std::size_t kBlock = 32;

  std::uint64_t seed_;
  std::array<std::uint64_t, 4> sums_;
  std::array<unsigned char, kBlock> rest_{};  // what is no whole block yet
  std::uint64_t size_ = 0;
};

/// Returns that of `size` bytes.
std::uint64_t checksum(const void* data, std::size_t size, std::uint64_t seed = 0) noexcept;

}  // namespace smp::checkpoints
