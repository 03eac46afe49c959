// checkpoint/checksum.cpp: the published algorithm, for little-endian machines.
#include "checkpoint/checksum.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace smp::checkpoints {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kPrime1 = 0x9e3779b185ebca87ull;
constexpr std::uint64_t kPrime2 = 0xc2b2ae3d27d4eb4full;
constexpr std::uint64_t kPrime3 = 0x165667b19e3779f9ull;
constexpr std::uint64_t kPrime4 = 0x85ebca77c2b2ae63ull;
constexpr std::uint64_t kPrime5 = 0x27d4eb2f165667c5ull;

template <class Word>
std::uint64_t load(const unsigned char* at) noexcept {
  Word word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

std::uint64_t round(std::uint64_t sum, std::uint64_t word) noexcept {
  return std::rotl(sum + word * kPrime2, 31) * kPrime1;
}

std::uint64_t merge(std::uint64_t hash, std::uint64_t sum) noexcept {
  return (hash ^ round(0, sum)) * kPrime1 + kPrime4;
}

/// Takes the blocks of 32 bytes off the start of `at`.
void add_blocks(std::array<std::uint64_t, 4>& sums, const unsigned char*& at,
                const unsigned char* end) noexcept {
  auto own = sums;  // in registers
  for (; end - at >= 32; at += 32) {
    for (std::size_t i = 0; i < own.size(); ++i) {
      own[i] = round(own[i], load<std::uint64_t>(at + 8 * i));
    }
  }
  sums = own;
}

std::uint64_t merged(const std::array<std::uint64_t, 4>& sums) noexcept {
  std::uint64_t hash = std::rotl(sums[0], 1) + std::rotl(sums[1], 7) + std::rotl(sums[2], 12) +
                       std::rotl(sums[3], 18);
  for (const std::uint64_t sum : sums) hash = merge(hash, sum);
  return hash;
}

std::uint64_t avalanche(std::uint64_t hash) noexcept {
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace

Checksum::Checksum(std::uint64_t seed) noexcept
    : seed_(seed), sums_{seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1} {}

Checksum& Checksum::add(const void* data, std::size_t size) noexcept {
  if (size == 0) return *this;
  const auto* at = static_cast<const unsigned char*>(data);
  const auto* const end = at + size;
  const std::size_t waiting = size_ % kBlock;
  size_ += size;
  if (waiting > 0) {
    const std::size_t taken = std::min(size, kBlock - waiting);
    std::memcpy(rest_.data() + waiting, at, taken);
    at += taken;
    if (waiting + taken < kBlock) return *this;
    const unsigned char* block = rest_.data();
    add_blocks(sums_, block, block + kBlock);
  }
  add_blocks(sums_, at, end);
  std::memcpy(rest_.data(), at, static_cast<std::size_t>(end - at));
  return *this;
}

std::uint64_t Checksum::value() const noexcept {
  const unsigned char* at = rest_.data();
  const auto* const end = at + size_ % kBlock;
  std::uint64_t hash = size_ >= kBlock ? merged(sums_) : seed_ + kPrime5;
  hash += size_;
  for (; end - at >= 8; at += 8) {
    hash = std::rotl(hash ^ round(0, load<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (end - at >= 4) {
    hash = std::rotl(hash ^ (load<std::uint32_t>(at) * kPrime1), 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at != end; ++at) hash = std::rotl(hash ^ (*at * kPrime5), 11) * kPrime1;
  return avalanche(hash);
}

std::uint64_t checksum(const void* data, std::size_t size, std::uint64_t seed) noexcept {
  return Checksum(seed).add(data, size).value();
}

}  // namespace smp::checkpoints
