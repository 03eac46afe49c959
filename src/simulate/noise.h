// simulate/noise.h: random numbers from a key, the same on every machine and in any order.
#pragma once

#include <cmath>
#include <cstdint>

namespace smp::simulate {

/// Returns uniform bits from a key (the finaliser of splitmix64).
inline std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// Returns a nearly normal number, mean 0, deviation 1, within 3.5: the sum of four uniform
/// numbers.
inline double noise(std::uint64_t key) noexcept {
  const std::uint64_t bits = mix(key);
  double sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<double>((bits >> (16 * i)) & 0xffff) + 0.5;
  return (sum / 65536 - 2) * std::sqrt(3.0);
}

}  // namespace smp::simulate
