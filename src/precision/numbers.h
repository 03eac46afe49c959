// precision/numbers.h: float32 and numbers of 16 bits, a vector of them at a time. `Lanes` is what
// a kind of processor has for that, see block_loops.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "precision/step_loop.h"

#define SMP_INLINE [[gnu::always_inline]] inline

namespace smp::precision {

/// Parts of float32 and bfloat16 numbers as bits.
inline constexpr std::uint32_t kInfinity = 0x7F800000u;
inline constexpr std::uint32_t kMagnitude = 0x7FFFFFFFu;
inline constexpr std::uint32_t kLargestFinite = 0x7F7Fu;
inline constexpr std::uint32_t kQuietNan = 0x0040u;
inline constexpr std::uint32_t kNan = 0x7FC00000u;

template <class Lanes>
using Floats = typename Lanes::Floats;
/// The bits of floats; those of a bfloat16 are their upper halves.
template <class Lanes>
using Words = typename Lanes::Words;
template <class Lanes>
using Halves = typename Lanes::Halves;

template <class Vector, class Element>
SMP_INLINE Vector load(const Element* from) noexcept {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

template <class Vector, class Element>
SMP_INLINE void store(Element* to, const Vector& vector) noexcept {
  std::memcpy(to, &vector, sizeof vector);
}

/// In all lanes (to subtract nothing changes no number, not even a zero's sign).
template <class Lanes>
SMP_INLINE Floats<Lanes> all_of(float number) noexcept {
  return number - Floats<Lanes>{};
}

/// Rounds to bfloat16, to nearest and ties to even; what is in the lower halves does not count.
template <class Lanes>
SMP_INLINE Words<Lanes> to_nearest(Floats<Lanes> value) noexcept {
  const auto bits = reinterpret_cast<Words<Lanes>>(value);
  const auto nearest = bits + 0x7FFFu + ((bits >> 16) & 1u);
  return value != value ? Words<Lanes>{} + kNan : nearest;
}

/// Rounds to bfloat16 by 16 random bits, never to an infinity: what is beyond the largest finite
/// number is cut. Infinities and quiet NaN stay such.
template <class Lanes>
SMP_INLINE Words<Lanes> by_chance(Floats<Lanes> value, Words<Lanes> random) noexcept {
  constexpr auto kAlwaysFinite = static_cast<std::int32_t>(kLargestFinite << 16);
  const auto bits = reinterpret_cast<Words<Lanes>>(value);
  const auto magnitude = reinterpret_cast<typename Lanes::Integers>(bits & kMagnitude);
  return magnitude < kAlwaysFinite ? bits + random : bits;
}

template <class Lanes>
SMP_INLINE Floats<Lanes> read(const void* from, Number type, std::int64_t begin) noexcept {
  if (type == Number::kFloat) return load<Floats<Lanes>>(static_cast<const float*>(from) + begin);
  const auto bits = load<Halves<Lanes>>(static_cast<const std::uint16_t*>(from) + begin);
  if (type == Number::kHalf) [[unlikely]]
    return Lanes::of_halves(bits);
  return reinterpret_cast<Floats<Lanes>>(Lanes::to_upper(bits));
}

/// As the type has it.
template <class Lanes>
SMP_INLINE Floats<Lanes> rounded(Floats<Lanes> value, Number type) noexcept {
  return type == Number::kBFloat16
             ? reinterpret_cast<Floats<Lanes>>(to_nearest<Lanes>(value) & ~0xFFFFu)
             : Lanes::of_halves(Lanes::to_halves(value));
}

}  // namespace smp::precision
