// data/order/permutation.cpp: a Feistel network permutes the numbers below a power of four whatever
// its rounds compute; what leaves 0 to size - 1 is shuffled again until it is back, which keeps it
// a permutation (Black and Rogaway's cycle walking).
#include "data/order/permutation.h"

#include <algorithm>
#include <bit>

#include "base/random.h"

namespace smp::data {
namespace {

constexpr std::uint64_t kRounds = 6;
// Networks over fewer numbers reach few of the permutations; of a few documents all orders shall
// come about equally often.
constexpr int kFewestHalfBits = 4;

}  // namespace

Permutation::Permutation(std::int64_t size, std::uint64_t key)
    : size_(static_cast<std::uint64_t>(size)),
      key_(key),
      half_bits_(std::max(kFewestHalfBits, (static_cast<int>(std::bit_width(size_ - 1)) + 1) / 2)) {
}

std::int64_t Permutation::operator()(std::int64_t index) const noexcept {
  auto value = static_cast<std::uint64_t>(index);
  do {
    value = shuffle(value);
  } while (value >= size_);
  return static_cast<std::int64_t>(value);
}

std::uint64_t Permutation::shuffle(std::uint64_t value) const noexcept {
  const auto mask = (std::uint64_t{1} << half_bits_) - 1;
  auto left = value >> half_bits_;
  auto right = value & mask;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const auto next = left ^ (base::mix_key(key_ + round, right) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

}  // namespace smp::data
