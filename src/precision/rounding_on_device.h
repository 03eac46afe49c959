// precision/rounding_on_device.h: stochastic rounding in LibTorch's operators, for any device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "precision/whole_index.h"

namespace smp::precision {

/// Parts of float32 and bfloat16 numbers as bits.
inline constexpr std::uint32_t kInfinity = 0x7F800000u;
inline constexpr std::uint32_t kMagnitude = 0x7FFFFFFFu;
inline constexpr std::uint16_t kLargestFinite = 0x7F7Fu;
inline constexpr std::uint16_t kQuietNan = 0x0040u;

/// Counters whose words are drawn together, and the elements that they are for: two a word.
inline constexpr std::int64_t kLanes = 8;
inline constexpr std::int64_t kBlock = kLanes * 4 * 2;

/// Rounds as round_stochastically() does on CPUs, to the bit, in some hundred operators.
void round_on_device(const at::Tensor& from, const at::Tensor& to, std::uint64_t key,
                     const WholeIndex& part);

}  // namespace smp::precision
