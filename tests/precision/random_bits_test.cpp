#include "precision/random_bits.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "precision/philox.h"

namespace smp::precision {
namespace {

/// Known answers of the algorithm's authors (Random123, kat_vectors: philox4x32 with 7 and 10
/// rounds).
TEST(Philox, GivesTheKnownAnswersOfZeros) {
  const auto seven = philox<1, 7>(0, 0).words;
  EXPECT_EQ(seven[0][0], 0x5f6fb709u);
  EXPECT_EQ(seven[1][0], 0x0d893f64u);
  EXPECT_EQ(seven[2][0], 0x4f121f81u);
  EXPECT_EQ(seven[3][0], 0x4f730a48u);
  const auto ten = philox<1, 10>(0, 0).words;
  EXPECT_EQ(ten[0][0], 0x6627e8d5u);
  EXPECT_EQ(ten[3][0], 0x9b00dbd8u);
}

std::vector<std::uint32_t> drawn(DrawBits draw, std::uint64_t key, std::int64_t first,
                                 std::int64_t blocks) {
  std::vector<std::uint32_t> bits(static_cast<std::size_t>(blocks * kBlock));
  draw(bits.data(), key, first, blocks);
  return bits;
}

/// Any number of blocks, on both sides of 2^32 counters.
TEST(RandomBits, AreTheSameOnAllProcessors) {
  for (const std::int64_t first : {std::int64_t{0}, std::int64_t{7}, (std::int64_t{1} << 29) - 2}) {
    for (std::int64_t blocks = 0; blocks < 12; ++blocks) {
      const auto expected = drawn(draw_portably, 0x123456789ABCDEFu, first, blocks);
#if defined(__x86_64__)
      if (__builtin_cpu_supports("avx2")) {
        EXPECT_EQ(drawn(draw_by_eight, 0x123456789ABCDEFu, first, blocks), expected);
      }
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")) {
        EXPECT_EQ(drawn(draw_by_sixteen, 0x123456789ABCDEFu, first, blocks), expected);
      }
#endif
      for (const auto bits : expected) EXPECT_LE(bits, 0xFFFFu);
    }
  }
}

TEST(RandomBits, OfABlockDoNotDependOnItsNeighbours) {
  const auto together = drawn(draw_portably, 5, 10, 6);
  const auto alone = drawn(draw_portably, 5, 13, 1);
  EXPECT_EQ(std::vector(together.begin() + 3 * kBlock, together.begin() + 4 * kBlock), alone);
}

}  // namespace
}  // namespace smp::precision
