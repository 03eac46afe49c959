// precision/numbers.h: numbers of 16 bits and float32, without branches, so that loops around them
// are vectorised.
#pragma once

#include <c10/util/Half.h>

#include <algorithm>
#include <bit>
#include <cstdint>

namespace smp::precision {

/// Parts of float32 and bfloat16 numbers as bits.
inline constexpr std::uint32_t kInfinity = 0x7F800000u;
inline constexpr std::uint32_t kMagnitude = 0x7FFFFFFFu;
inline constexpr std::uint32_t kLargestFinite = 0x7F7Fu;
inline constexpr std::uint32_t kQuietNan = 0x0040u;

[[gnu::always_inline]] inline float of_bfloat16(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

[[gnu::always_inline]] inline std::uint16_t to_bfloat16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto nearest = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>(value != value ? 0x7FC0u : nearest);
}

[[gnu::always_inline]] inline float of_half(std::uint16_t bits) noexcept {
  return c10::detail::fp16_ieee_to_fp32_value(bits);
}

[[gnu::always_inline]] inline std::uint16_t to_half(float value) noexcept {
  return c10::detail::fp16_ieee_from_fp32_value(value);
}

/// Rounds the bits of a float32 to those of a bfloat16 by 16 random bits. Never to an infinity;
/// infinities and NaN stay such.
[[gnu::always_inline]] inline std::uint16_t by_chance(std::uint32_t bits,
                                                      std::uint32_t random) noexcept {
  const std::uint32_t magnitude = bits & kMagnitude;
  const std::uint32_t finite = std::min((magnitude + random) >> 16, kLargestFinite);
  const std::uint32_t other = (magnitude >> 16) | (magnitude > kInfinity ? kQuietNan : 0u);
  return static_cast<std::uint16_t>(((bits >> 16) & 0x8000u) |
                                    (magnitude < kInfinity ? finite : other));
}

/// The same for numbers that cannot become an infinity: those below kNeverInfinite in magnitude.
inline constexpr std::uint32_t kNeverInfinite = 0x7F7F0000u;
[[gnu::always_inline]] inline std::uint16_t by_chance_below(std::uint32_t bits,
                                                            std::uint32_t random) noexcept {
  return static_cast<std::uint16_t>((bits + random) >> 16);
}

}  // namespace smp::precision
