// precision/random_bits.h: the 16 random bits of each element, many at once.
#pragma once

#include <cstdint>

namespace smp::precision {

/// Counters whose words are drawn together, and the elements that they are for: two a word.
inline constexpr std::int64_t kLanes = 8;
inline constexpr std::int64_t kBlock = kLanes * 4 * 2;

/// Writes the bits of the elements of blocks `first` to `first + blocks - 1` under `key`, each in a
/// word of its own. Element e of a block has half e / 8 % 2 of word e / 16 of lane e % 8, so that
/// neighbours come from neighbouring lanes.
using DrawBits = void (*)(std::uint32_t* bits, std::uint64_t key, std::int64_t first,
                          std::int64_t blocks);

void draw_portably(std::uint32_t* bits, std::uint64_t key, std::int64_t first,
                   std::int64_t blocks) noexcept;
#if defined(__x86_64__)
void draw_by_eight(std::uint32_t* bits, std::uint64_t key, std::int64_t first,
                   std::int64_t blocks) noexcept;  ///< AVX2
void draw_by_sixteen(std::uint32_t* bits, std::uint64_t key, std::int64_t first,
                     std::int64_t blocks) noexcept;  ///< AVX-512
#endif

}  // namespace smp::precision
