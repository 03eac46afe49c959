// precision/lanes_avx2.cpp: the loops for processors with AVX2.
#if defined(__x86_64__)
#include <immintrin.h>

#include <array>
#include <cstring>

#include "precision/step_loop.h"

// After what other sources share, which may be compiled for all processors only.
#pragma GCC target("avx2,fma,f16c")
#include "precision/block_loops.h"

namespace smp::precision {
namespace {

struct Lanes {
  using Floats [[gnu::vector_size(32)]] = float;
  using Words [[gnu::vector_size(32)]] = std::uint32_t;
  using Integers [[gnu::vector_size(32)]] = std::int32_t;
  using Halves [[gnu::vector_size(16)]] = std::uint16_t;
  using Wide [[gnu::vector_size(32)]] = std::uint64_t;

  SMP_INLINE static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  SMP_INLINE static Floats root(Floats a) { return _mm256_sqrt_ps(a); }
  SMP_INLINE static Floats of_halves(Halves a) {
    return _mm256_cvtph_ps(reinterpret_cast<__m128i>(a));
  }
  SMP_INLINE static Halves to_halves(Floats a) {
    return reinterpret_cast<Halves>(_mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
  }
  SMP_INLINE static Words to_upper(Halves a) {
    return reinterpret_cast<Words>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(a))) << 16;
  }
  SMP_INLINE static Halves upper_of(Words a) {
    const auto lower = reinterpret_cast<__m256i>(a >> 16);
    return reinterpret_cast<Halves>(
        _mm_packus_epi32(_mm256_castsi256_si128(lower), _mm256_extracti128_si256(lower, 1)));
  }
  SMP_INLINE static Wide product(Wide a, std::uint32_t factor) {
    return reinterpret_cast<Wide>(
        _mm256_mul_epu32(reinterpret_cast<__m256i>(a), _mm256_set1_epi64x(factor)));
  }
  /// The lower halves of two times four lanes in order.
  SMP_INLINE static Words joined(Wide a, Wide b) {
    const auto both = _mm256_shuffle_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b),
                                        _MM_SHUFFLE(2, 0, 2, 0));
    return reinterpret_cast<Words>(
        _mm256_permute4x64_epi64(_mm256_castps_si256(both), _MM_SHUFFLE(3, 1, 2, 0)));
  }
  /// Each word is for sixteen neighbours: the lower halves of its lanes, then the upper ones.
  SMP_INLINE static std::array<Words, 8> draw(std::uint64_t key, std::int64_t block) {
    const auto counters = Wide{0, 1, 2, 3} + static_cast<std::uint64_t>(block * kLanes);
    const auto words = philox<Lanes>(counters, key), others = philox<Lanes>(counters + 4, key);
    std::array<Words, 8> bits;
#pragma GCC unroll 4
    for (std::size_t i = 0; i < words.size(); ++i) {
      const auto both = joined(words[i], others[i]);
      bits[2 * i] = both & 0xFFFFu;
      bits[2 * i + 1] = both >> 16;
    }
    return bits;
  }
};

}  // namespace

BlockLoops avx2_loops() { return block_loops<Lanes>("AVX2"); }

}  // namespace smp::precision
#endif
