// precision/random_bits.cpp: the loops. A word of 32 bits lies in one of 64, as that is what the
// processors multiply; its upper half is never read.
#include "precision/random_bits.h"

#include <cstddef>

#include "precision/philox.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace smp::precision {

void draw_portably(std::uint32_t* bits, std::uint64_t key, std::int64_t first,
                   std::int64_t blocks) noexcept {
  for (std::int64_t block = first; block < first + blocks; ++block, bits += kBlock) {
    const auto drawn = philox<kLanes>(key, static_cast<std::uint64_t>(block * kLanes));
    for (std::size_t word = 0; word < 4; ++word) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const auto value = drawn.words[word][lane];
        bits[word * 2 * kLanes + lane] = value & 0xFFFFu;
        bits[word * 2 * kLanes + kLanes + lane] = value >> 16;
      }
    }
  }
}

#if defined(__x86_64__)

[[gnu::target("avx2")]] void draw_by_eight(std::uint32_t* bits, std::uint64_t key,
                                           std::int64_t first, std::int64_t blocks) noexcept {
  const __m256i left = _mm256_set1_epi64x(kPhiloxLeft), right = _mm256_set1_epi64x(kPhiloxRight);
  const __m256i lower = _mm256_set1_epi32(0xFFFF);
  for (std::int64_t block = first; block < first + blocks; ++block, bits += kBlock) {
    __m256i words[4][2];
    for (int half = 0; half < 2; ++half) {
      words[0][half] = _mm256_add_epi64(_mm256_set1_epi64x(block * kLanes + 4 * half),
                                        _mm256_setr_epi64x(0, 1, 2, 3));
      words[1][half] = _mm256_srli_epi64(words[0][half], 32);
      words[2][half] = words[3][half] = _mm256_setzero_si256();
    }
    auto low = static_cast<std::uint32_t>(key), high = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const __m256i to_a = _mm256_set1_epi64x(low), to_c = _mm256_set1_epi64x(high);
      for (int half = 0; half < 2; ++half) {
        auto &a = words[0][half], &b = words[1][half], &c = words[2][half], &d = words[3][half];
        const __m256i x = _mm256_mul_epu32(a, left), y = _mm256_mul_epu32(c, right);
        a = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(y, 32), b), to_a);
        c = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(x, 32), d), to_c);
        b = y;
        d = x;
      }
      low += kPhiloxLow;
      high += kPhiloxHigh;
    }
    for (int word = 0; word < 4; ++word) {
      const auto both = _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(words[word][0]),
                                                              _mm256_castsi256_ps(words[word][1]),
                                                              _MM_SHUFFLE(2, 0, 2, 0)));
      const auto lanes = _mm256_permute4x64_epi64(both, _MM_SHUFFLE(3, 1, 2, 0));
      auto* const to = reinterpret_cast<__m256i*>(bits + word * 2 * kLanes);
      _mm256_storeu_si256(to, _mm256_and_si256(lanes, lower));
      _mm256_storeu_si256(to + 1, _mm256_srli_epi32(lanes, 16));
    }
  }
}

namespace {

/// `kBlocks` at once, which hides how long a multiplication takes.
template <int kBlocks>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] void draw_blocks(
    std::uint32_t* bits, std::uint64_t key, std::int64_t first) noexcept {
  const __m512i left = _mm512_set1_epi64(kPhiloxLeft), right = _mm512_set1_epi64(kPhiloxRight);
  const __m256i lower = _mm256_set1_epi32(0xFFFF);
  __m512i words[4][kBlocks];
  for (int block = 0; block < kBlocks; ++block) {
    words[0][block] = _mm512_add_epi64(_mm512_set1_epi64((first + block) * kLanes),
                                       _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
    words[1][block] = _mm512_srli_epi64(words[0][block], 32);
    words[2][block] = words[3][block] = _mm512_setzero_si512();
  }
  auto low = static_cast<std::uint32_t>(key), high = static_cast<std::uint32_t>(key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const __m512i to_a = _mm512_set1_epi64(low), to_c = _mm512_set1_epi64(high);
    for (int block = 0; block < kBlocks; ++block) {
      auto &a = words[0][block], &b = words[1][block], &c = words[2][block], &d = words[3][block];
      const __m512i x = _mm512_mul_epu32(a, left), y = _mm512_mul_epu32(c, right);
      constexpr int kXorOfThree = 0x96;
      a = _mm512_ternarylogic_epi64(_mm512_srli_epi64(y, 32), b, to_a, kXorOfThree);
      c = _mm512_ternarylogic_epi64(_mm512_srli_epi64(x, 32), d, to_c, kXorOfThree);
      b = y;
      d = x;
    }
    low += kPhiloxLow;
    high += kPhiloxHigh;
  }
  for (int block = 0; block < kBlocks; ++block) {
    for (int word = 0; word < 4; ++word) {
      const auto lanes = _mm512_cvtepi64_epi32(words[word][block]);
      auto* const to = reinterpret_cast<__m256i*>(bits + block * kBlock + word * 2 * kLanes);
      _mm256_storeu_si256(to, _mm256_and_si256(lanes, lower));
      _mm256_storeu_si256(to + 1, _mm256_srli_epi32(lanes, 16));
    }
  }
}

}  // namespace

void draw_by_sixteen(std::uint32_t* bits, std::uint64_t key, std::int64_t first,
                     std::int64_t blocks) noexcept {
  constexpr int kTogether = 4;
  for (; blocks >= kTogether; blocks -= kTogether, first += kTogether, bits += kTogether * kBlock) {
    draw_blocks<kTogether>(bits, key, first);
  }
  for (; blocks > 0; --blocks, ++first, bits += kBlock) draw_blocks<1>(bits, key, first);
}

#endif

}  // namespace smp::precision
