// precision/lanes_avx512.cpp: the loops for processors with AVX-512.
#if defined(__x86_64__)
#include <immintrin.h>

#include <array>
#include <cstring>

#include "precision/step_loop.h"

// After what other sources share, which may be compiled for all processors only.
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c,prefer-vector-width=512")
#include "precision/block_loops.h"

namespace smp::precision {
namespace {

struct Lanes {
  using Floats [[gnu::vector_size(64)]] = float;
  using Words [[gnu::vector_size(64)]] = std::uint32_t;
  using Integers [[gnu::vector_size(64)]] = std::int32_t;
  using Halves [[gnu::vector_size(32)]] = std::uint16_t;
  using Wide [[gnu::vector_size(64)]] = std::uint64_t;
  using Places [[gnu::vector_size(64)]] = std::uint16_t;

  SMP_INLINE static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  SMP_INLINE static Floats root(Floats a) { return _mm512_sqrt_ps(a); }
  SMP_INLINE static Floats of_halves(Halves a) {
    return _mm512_cvtph_ps(reinterpret_cast<__m256i>(a));
  }
  SMP_INLINE static Halves to_halves(Floats a) {
    return reinterpret_cast<Halves>(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
  }
  /// One instruction, where widening and shifting are two.
  SMP_INLINE static Words to_upper(Halves a) {
    constexpr Places kFrom{0, 0, 0, 1, 0, 2,  0, 3,  0, 4,  0, 5,  0, 6,  0, 7,
                           0, 8, 0, 9, 0, 10, 0, 11, 0, 12, 0, 13, 0, 14, 0, 15};
    const auto wide = _mm512_castsi256_si512(reinterpret_cast<__m256i>(a));
    return reinterpret_cast<Words>(
        _mm512_maskz_permutexvar_epi16(0xAAAAAAAA, reinterpret_cast<__m512i>(kFrom), wide));
  }
  SMP_INLINE static Halves upper_of(Words a) {
    constexpr Places kFrom{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
    return reinterpret_cast<Halves>(_mm512_castsi512_si256(
        _mm512_permutexvar_epi16(reinterpret_cast<__m512i>(kFrom), reinterpret_cast<__m512i>(a))));
  }
  SMP_INLINE static Wide product(Wide a, std::uint32_t factor) {
    return reinterpret_cast<Wide>(
        _mm512_mul_epu32(reinterpret_cast<__m512i>(a), _mm512_set1_epi64(factor)));
  }
  /// Each word is for sixteen neighbours: the lower halves of its lanes, then the upper ones.
  SMP_INLINE static std::array<Words, 4> draw(std::uint64_t key, std::int64_t block) {
    constexpr Wide kEach{0, 1, 2, 3, 4, 5, 6, 7};
    constexpr Places kFrom{0, 0, 4, 0, 8, 0, 12, 0, 16, 0, 20, 0, 24, 0, 28, 0,
                           1, 0, 5, 0, 9, 0, 13, 0, 17, 0, 21, 0, 25, 0, 29, 0};
    const auto words = philox<Lanes>(kEach + static_cast<std::uint64_t>(block * kLanes), key);
    std::array<Words, 4> bits;
    for (std::size_t i = 0; i < bits.size(); ++i) {
      bits[i] = reinterpret_cast<Words>(_mm512_maskz_permutexvar_epi16(
          0x55555555, reinterpret_cast<__m512i>(kFrom), reinterpret_cast<__m512i>(words[i])));
    }
    return bits;
  }
};

}  // namespace

BlockLoops avx512_loops() { return block_loops<Lanes>("AVX-512"); }

}  // namespace smp::precision
#endif
