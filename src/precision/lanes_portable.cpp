// precision/lanes_portable.cpp: the loops for any processor.
#include <c10/util/Half.h>

#include "precision/block_loops.h"

namespace smp::precision {
namespace {

/// Vectors of 16 bytes, which most processors have.
struct Lanes {
  using Floats [[gnu::vector_size(16)]] = float;
  using Words [[gnu::vector_size(16)]] = std::uint32_t;
  using Integers [[gnu::vector_size(16)]] = std::int32_t;
  using Halves [[gnu::vector_size(8)]] = std::uint16_t;
  static constexpr int kWidth = 4;

  /// From memory, where GCC sees that lanes are neighbours: it makes one instruction of them then.
  SMP_INLINE static Floats fma(Floats a, Floats b, Floats c) {
    asm("" : "+m"(a), "+m"(b), "+m"(c));
    Floats sum;
    for (int i = 0; i < kWidth; ++i) sum[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return sum;
  }
  SMP_INLINE static Floats root(Floats a) {
    for (int i = 0; i < kWidth; ++i) a[i] = __builtin_sqrtf(a[i]);
    return a;
  }
  SMP_INLINE static Floats of_halves(Halves a) {
    Floats wide;
    for (int i = 0; i < kWidth; ++i) wide[i] = c10::detail::fp16_ieee_to_fp32_value(a[i]);
    return wide;
  }
  SMP_INLINE static Halves to_halves(Floats a) {
    Halves halves;
    for (int i = 0; i < kWidth; ++i) halves[i] = c10::detail::fp16_ieee_from_fp32_value(a[i]);
    return halves;
  }
  SMP_INLINE static Words to_upper(Halves a) { return __builtin_convertvector(a, Words) << 16; }
  SMP_INLINE static Halves upper_of(Words a) { return __builtin_convertvector(a >> 16, Halves); }
  SMP_INLINE static std::array<Words, kBlock / kWidth> draw(std::uint64_t key, std::int64_t block) {
    const auto elements = random_bits(key, block);
    std::array<Words, kBlock / kWidth> bits;
    std::memcpy(bits.data(), elements.data(), sizeof bits);
    return bits;
  }
};

}  // namespace

BlockLoops portable_loops() { return block_loops<Lanes>("portable"); }

}  // namespace smp::precision
