// checkpoint/checksum.h: XXH64, which notices damage to files and differences between ranks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smp::checkpoint {

/// Returns the 64-bit xxHash (XXH64) of `size` bytes. It detects accidental damage, not tampering.
std::uint64_t checksum(const void* data, std::size_t size, std::uint64_t seed = 0) noexcept;

}  // namespace smp::checkpoint
