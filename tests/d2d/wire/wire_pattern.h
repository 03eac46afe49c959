// Bytes that tell where they belong, and places that notice what is written beside them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"

namespace smp::d2d {

/// What a transfer carries: every eight bytes depend on who sends them to whom, as which transfer,
/// and on their position, and no eight are like others of the transfer. So pieces that are swapped,
/// repeated, shifted or those of another transfer are seen.
class WirePattern {
 public:
  WirePattern(int source, int destination, std::uint64_t id)
      : start_(mix(mix(static_cast<std::uint64_t>(source) << 32 |
                       static_cast<std::uint64_t>(destination)) +
                   id)) {}

  void fill(std::span<std::byte> bytes) const {
    for (std::size_t at = 0; at < bytes.size(); at += kWord) {
      const std::uint64_t expected = word(at);
      std::memcpy(bytes.data() + at, &expected, std::min(kWord, bytes.size() - at));
    }
  }
  std::vector<std::byte> bytes(std::size_t size) const {
    std::vector<std::byte> made(size);
    fill(made);
    return made;
  }
  /// Where `bytes` are not those of fill() first; empty: they are.
  std::string difference(std::span<const std::byte> bytes) const {
    for (std::size_t at = 0; at < bytes.size(); at += kWord) {
      const std::uint64_t expected = word(at);
      const std::size_t size = std::min(kWord, bytes.size() - at);
      if (std::memcmp(bytes.data() + at, &expected, size) == 0) continue;
      return base::concat("other bytes at ", at, " of ", bytes.size(), origin(bytes, at));
    }
    return "";
  }

 private:
  static constexpr std::size_t kWord = sizeof(std::uint64_t);

  // Of one to one, so that no word comes twice (the end of SplitMix64).
  static std::uint64_t mix(std::uint64_t bits) {
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
    return bits ^ bits >> 31;
  }
  std::uint64_t word(std::size_t at) const { return mix(start_ + at / kWord * 0x9e3779b97f4a7c15); }
  // Where the word that is at `at` belongs.
  std::string origin(std::span<const std::byte> bytes, std::size_t at) const {
    std::uint64_t found = 0;
    if (at + kWord > bytes.size()) return "";
    std::memcpy(&found, bytes.data() + at, kWord);
    for (std::size_t other = 0; other + kWord <= bytes.size(); other += kWord) {
      if (word(other) == found) return base::concat(", those of position ", other);
    }
    return ", which are none of this transfer";
  }

  std::uint64_t start_;
};

/// Where a transfer goes, with bytes before and behind that nobody may write to.
class GuardedPlace {
 public:
  explicit GuardedPlace(std::size_t size = 0) : memory_(size + 2 * kGuard, kUntouched) {}
  std::span<std::byte> bytes() {
    return std::span(memory_).subspan(kGuard, memory_.size() - 2 * kGuard);
  }
  bool intact() const {
    const auto untouched = [](std::byte byte) { return byte == kUntouched; };
    const auto guard = static_cast<std::ptrdiff_t>(kGuard);
    return std::all_of(memory_.begin(), memory_.begin() + guard, untouched) &&
           std::all_of(memory_.end() - guard, memory_.end(), untouched);
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kUntouched{0xa5};
  std::vector<std::byte> memory_;
};

}  // namespace smp::d2d
