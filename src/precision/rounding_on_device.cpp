// precision/rounding_on_device.cpp: the random bits and the rounding, an operator at a time.
#include "precision/rounding_on_device.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>

#include "precision/numbers.h"
#include "precision/philox.h"
#include "precision/random_bits.h"

namespace smp::precision {
namespace {

constexpr std::int64_t kWord = 0xFFFFFFFF;

/// The 64-bit product of 32-bit words in int64, as its upper and its lower half.
std::array<at::Tensor, 2> product(const at::Tensor& word, std::int64_t factor) {
  const auto whole = word * factor;  // wraps, which keeps all bits
  return {whole.__rshift__(32).bitwise_and(kWord), whole.bitwise_and(kWord)};
}

/// The 16 random bits of each element whose place in the whole is in `place`; both int64.
at::Tensor bits_by_operators(const at::Tensor& place, std::uint64_t key) {
  const auto within = place.bitwise_and(kBlock - 1);
  const auto counter = place.__rshift__(6) * kLanes + within.bitwise_and(kLanes - 1);
  auto a = counter.bitwise_and(kWord), b = counter.__rshift__(32);
  auto c = at::zeros_like(a), d = at::zeros_like(a);
  auto low = static_cast<std::uint32_t>(key), high = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const auto left = product(a, kPhiloxLeft);
    const auto right = product(c, kPhiloxRight);
    a = right[0].bitwise_xor(b).bitwise_xor(std::int64_t{low});
    c = left[0].bitwise_xor(d).bitwise_xor(std::int64_t{high});
    b = right[1];
    d = left[1];
    low += kPhiloxLow;
    high += kPhiloxHigh;
  }
  const auto word = at::stack({a, b, c, d}).gather(0, within.__rshift__(4).unsqueeze(0)).squeeze(0);
  const auto upper = within.__rshift__(3).bitwise_and(1) == 1;
  return at::where(upper, word.__rshift__(16), word).bitwise_and(0xFFFF);
}

/// Elements that are rounded together, for which there are some 120 bytes each meanwhile.
constexpr std::int64_t kChunk = std::int64_t{1} << 22;

/// Rounds `from`, one-dimensional, whose first element is number `begin` of the part.
void round_chunk(const at::Tensor& from, const at::Tensor& to, std::int64_t begin,
                 std::uint64_t key, const WholeIndex& part) {
  const auto element = at::arange(begin, begin + from.numel(), from.options().dtype(at::kLong));
  const auto row = element.div(part.inner, "floor");
  const auto place = row * (part.whole_inner - part.inner) + element + part.first;
  const auto bits = from.view(at::kInt).to(at::kLong).bitwise_and(kWord);
  const auto magnitude = bits.bitwise_and(std::int64_t{kMagnitude});
  const auto moved = (magnitude + bits_by_operators(place, key)).__rshift__(16);
  const auto quiet = at::where(magnitude > std::int64_t{kInfinity}, std::int64_t{kQuietNan}, 0);
  const auto other = magnitude.__rshift__(16).bitwise_or(quiet);
  const auto value = at::where(magnitude < std::int64_t{kInfinity},
                               moved.clamp_max(std::int64_t{kLargestFinite}), other);
  const auto sign = bits.__rshift__(16).bitwise_and(0x8000);
  to.view(at::kShort).copy_(value.bitwise_or(sign).to(at::kShort));
}

}  // namespace

void round_on_device(const at::Tensor& from, const at::Tensor& to, std::uint64_t key,
                     const WholeIndex& part) {
  const at::NoGradGuard no_grad;
  const auto all = from.flatten(), rounded = to.flatten();
  for (std::int64_t begin = 0; begin < all.numel(); begin += kChunk) {
    const auto count = std::min(kChunk, all.numel() - begin);
    round_chunk(all.narrow(0, begin, count), rounded.narrow(0, begin, count), begin, key, part);
  }
}

}  // namespace smp::precision
