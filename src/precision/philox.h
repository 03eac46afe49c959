// precision/philox.h: random numbers by counter (Salmon et al., SC 2011: Philox4x32).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace smp::precision {

/// The fewest that pass BigCrush there; ten would cost a step of 16 bits a tenth of its time.
inline constexpr int kPhiloxRounds = 7;
inline constexpr std::uint32_t kPhiloxLeft = 0xD2511F53u, kPhiloxRight = 0xCD9E8D57u;
/// What is added to the halves of the key after each round.
inline constexpr std::uint32_t kPhiloxLow = 0x9E3779B9u, kPhiloxHigh = 0xBB67AE85u;

/// Four random words for each of `kLanes` neighbouring counters, made side by side so that a
/// compiler vectorises the rounds: words[w][lane].
template <std::size_t kLanes>
struct PhiloxWords {
  std::array<std::array<std::uint32_t, kLanes>, 4> words;
};

/// Returns the words of counters `first` to `first + kLanes - 1` under `key`.
template <std::size_t kLanes, int kRounds = kPhiloxRounds>
[[gnu::always_inline]] inline PhiloxWords<kLanes> philox(std::uint64_t key,
                                                         std::uint64_t first) noexcept {
  PhiloxWords<kLanes> result{};
  auto& [a, b, c, d] = result.words;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const std::uint64_t counter = first + lane;
    a[lane] = static_cast<std::uint32_t>(counter);
    b[lane] = static_cast<std::uint32_t>(counter >> 32);
  }
  auto low = static_cast<std::uint32_t>(key), high = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const std::uint64_t left = std::uint64_t{kPhiloxLeft} * a[lane];
      const std::uint64_t right = std::uint64_t{kPhiloxRight} * c[lane];
      a[lane] = static_cast<std::uint32_t>(right >> 32) ^ b[lane] ^ low;
      b[lane] = static_cast<std::uint32_t>(right);
      c[lane] = static_cast<std::uint32_t>(left >> 32) ^ d[lane] ^ high;
      d[lane] = static_cast<std::uint32_t>(left);
    }
    low += kPhiloxLow;
    high += kPhiloxHigh;
  }
  return result;
}

}  // namespace smp::precision
