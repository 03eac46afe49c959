#include "precision/random_bits.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <vector>

#include "precision/step_loop.h"

namespace smp::precision {
namespace {

/// Known answers of the algorithm's authors (Random123, kat_vectors: philox4x32 with 7 and 10
/// rounds).
TEST(Philox, GivesTheKnownAnswersOfZeros) {
  const auto lower = [](std::uint64_t word) { return static_cast<std::uint32_t>(word); };
  const auto seven = philox<OneCounter, 7>(0, 0);
  EXPECT_EQ(lower(seven[0]), 0x5f6fb709u);
  EXPECT_EQ(lower(seven[1]), 0x0d893f64u);
  EXPECT_EQ(lower(seven[2]), 0x4f121f81u);
  EXPECT_EQ(lower(seven[3]), 0x4f730a48u);
  const auto ten = philox<OneCounter, 10>(0, 0);
  EXPECT_EQ(lower(ten[0]), 0x6627e8d5u);
  EXPECT_EQ(lower(ten[3]), 0x9b00dbd8u);
}

/// The bits of elements `first` and on, by which of 1 + 2^-7 · (lower / 2^16) go up.
std::vector<std::uint32_t> bits_of(const StepLoops& loops, std::uint64_t key, std::int64_t first,
                                   std::size_t count) {
  std::vector<std::uint32_t> bits(count);
  for (int shift = 15; shift >= 0; --shift) {
    // Those that go up with what is missing to 2^16 have at least as much.
    std::vector<float> from(count);
    std::vector<std::uint16_t> to(count);
    const auto guess = [&](std::size_t i) { return bits[i] | 1u << shift; };
    for (std::size_t i = 0; i < count; ++i) {
      from[i] = std::bit_cast<float>(0x3F800000u + (0x10000u - guess(i)));
    }
    loops.round(from.data(), to.data(), static_cast<std::int64_t>(count), {true, key, first});
    for (std::size_t i = 0; i < count; ++i) {
      if (to[i] != 0x3F80u) bits[i] = guess(i);
    }
  }
  return bits;
}

/// Any neighbours, on both sides of 2^32 counters.
TEST(RandomBits, AreTheSameOnAllProcessors) {
  constexpr std::uint64_t kKey = 0x123456789ABCDEFu;
  for (const auto& loops : step_loops()) {
    for (const std::int64_t first :
         {std::int64_t{0}, std::int64_t{7}, (std::int64_t{1} << 35) - 70}) {
      for (const std::size_t count : {1u, 57u, 64u, 200u}) {
        const auto bits = bits_of(loops, kKey, first, count);
        for (std::size_t i = 0; i < count; ++i) {
          const auto place = first + static_cast<std::int64_t>(i);
          const auto due =
              random_bits(kKey, place / kBlock)[static_cast<std::size_t>(place % kBlock)];
          EXPECT_EQ(bits[i], due) << loops.name() << " " << place;
        }
      }
    }
  }
}

/// Half e / 8 % 2 of word e / 16 of lane e % 8.
TEST(RandomBits, OfEachElementAreAHalfOfAWord) {
  const auto bits = random_bits(5, 13);
  for (std::uint64_t element = 0; element < bits.size(); ++element) {
    const auto words = philox<OneCounter>(13 * kLanes + element % 8, 5);
    const auto half = words[element / 16] >> (element / 8 % 2 * 16) & 0xFFFFu;
    EXPECT_EQ(bits[element], half) << element;
  }
}

}  // namespace
}  // namespace smp::precision
