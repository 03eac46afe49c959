// precision/philox.h: random numbers by counter (Salmon et al., SC 2011: Philox4x32).
#pragma once

#include <array>
#include <cstdint>

namespace smp::precision {

/// The fewest that pass BigCrush there; ten would cost a step of 16 bits a tenth of its time.
inline constexpr int kPhiloxRounds = 7;
inline constexpr std::uint32_t kPhiloxLeft = 0xD2511F53u, kPhiloxRight = 0xCD9E8D57u;
/// What is added to the halves of the key after each round.
inline constexpr std::uint32_t kPhiloxLow = 0x9E3779B9u, kPhiloxHigh = 0xBB67AE85u;

/// One counter. Processors have `Wide` for several, each in 64 bits, as that is what they multiply.
struct OneCounter {
  using Wide = std::uint64_t;
  /// The product of the lower half.
  static Wide product(Wide word, std::uint32_t factor) noexcept {
    return (word & 0xFFFFFFFFu) * factor;
  }
};

/// Returns four random words for each counter under `key`, in lower halves; the upper ones are
/// left over.
template <class Counters, int kRounds = kPhiloxRounds>
[[gnu::always_inline]] inline std::array<typename Counters::Wide, 4> philox(
    typename Counters::Wide counters, std::uint64_t key) noexcept {
  using Wide = typename Counters::Wide;
  Wide a = counters, b = counters >> 32, c{}, d{};
  auto low = static_cast<std::uint32_t>(key), high = static_cast<std::uint32_t>(key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < kRounds; ++round) {
    const Wide left = Counters::product(a, kPhiloxLeft);
    const Wide right = Counters::product(c, kPhiloxRight);
    a = (right >> 32) ^ b ^ std::uint64_t{low};
    c = (left >> 32) ^ d ^ std::uint64_t{high};
    b = right;
    d = left;
    low += kPhiloxLow;
    high += kPhiloxHigh;
  }
  return {a, b, c, d};
}

}  // namespace smp::precision
