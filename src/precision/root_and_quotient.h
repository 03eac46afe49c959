// precision/root_and_quotient.h: square roots and quotients of fused multiply-adds, which
// processors do two of in each cycle, where one division of a vector takes 16 cycles and a root 18.
// The same operations in the same order on every processor, so the same bits.
#pragma once

#include <bit>
#include <cstdint>

namespace smp::precision {

/// Returns the square root of a number that is not negative, within 1.5e-7 of it; of numbers below
/// 1e-37 it may be smaller. Infinity counts as the largest number, NaN stays NaN.
[[gnu::always_inline]] inline float root_of(float x) noexcept {
  constexpr float kLargest = 3.40282347e38f;
  constexpr std::uint32_t kGuess = 0x5F375A86u;  // Lomont 2003: within 3.5 %
  const float value = x > kLargest ? kLargest : x;
  const float half = 0.5f * value;
  // One over the root, by Newton's method: 0.18 %, then 5e-6.
  float y = std::bit_cast<float>(kGuess - (std::bit_cast<std::uint32_t>(value) >> 1));
  y = y * __builtin_fmaf(-half * y, y, 1.5f);
  y = y * __builtin_fmaf(-half * y, y, 1.5f);
  const float root = value * y;
  return __builtin_fmaf(__builtin_fmaf(-root, root, value), 0.5f * y, root);
}

/// Returns a / b for a positive b from 1e-37 to 1e37, within 1.5e-7 of it.
[[gnu::always_inline]] inline float quotient_of(float a, float b) noexcept {
  constexpr std::uint32_t kGuess = 0x7EF311C7u;  // within 12 %
  float y = std::bit_cast<float>(kGuess - std::bit_cast<std::uint32_t>(b));
  y = __builtin_fmaf(y, __builtin_fmaf(-b, y, 1.0f), y);  // 1.5 %
  y = __builtin_fmaf(y, __builtin_fmaf(-b, y, 1.0f), y);  // 0.02 %
  const float quotient = a * y;
  return __builtin_fmaf(__builtin_fmaf(-b, quotient, a), y, quotient);  // 5e-8
}

}  // namespace smp::precision
