// precision/random_bits.h: the 16 random bits of each element, drawn for a block of neighbours.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "precision/philox.h"

namespace smp::precision {

/// Counters whose words are drawn together, and the elements that they are for: two a word.
inline constexpr std::int64_t kLanes = 8;
inline constexpr std::int64_t kBlock = kLanes * 4 * 2;

/// Returns the bits of the elements of a block under `key`. Element e of a block has half e / 8 % 2
/// of word e / 16 of lane e % 8, so that neighbours come from neighbouring lanes.
[[gnu::always_inline]] inline std::array<std::uint32_t, kBlock> random_bits(
    std::uint64_t key, std::int64_t block) noexcept {
  std::array<std::uint32_t, kBlock> bits;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const auto words = philox<OneCounter>(static_cast<std::uint64_t>(block * kLanes) + lane, key);
    for (std::size_t word = 0; word < words.size(); ++word) {
      bits[word * 2 * kLanes + lane] = words[word] & 0xFFFFu;
      bits[word * 2 * kLanes + kLanes + lane] = words[word] >> 16 & 0xFFFFu;
    }
  }
  return bits;
}

}  // namespace smp::precision
