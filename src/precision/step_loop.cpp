// precision/step_loop.cpp: one loop, compiled for each kind of processor. A block of elements is
// read into arrays, computed in float32 and written back, so that the compiler knows that nothing
// overlaps and how often each loop runs.
#include "precision/step_loop.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "precision/numbers.h"
#include "precision/random_bits.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace smp::precision {
namespace {

#define SMP_INLINE [[gnu::always_inline]] inline

template <class T>
using Block = std::array<T, static_cast<std::size_t>(kBlock)>;

/// Elements whose random bits are drawn together.
constexpr std::int64_t kGroup = 4 * kBlock;
/// How far ahead of itself the loop asks for memory, in elements. Parameters of 16 bits come with
/// more streams than processors follow by themselves.
constexpr std::int64_t kAhead = 1024;
constexpr std::int64_t kLine = 64;  // bytes

std::int64_t size_of(Number type) { return type == Number::kFloat ? 4 : 2; }

SMP_INLINE void prefetch(const void* from, std::int64_t begin, std::int64_t size) noexcept {
  if (from == nullptr) return;
  const auto* const at = static_cast<const char*>(from) + (begin + kAhead) * size;
  for (std::int64_t line = 0; line < kBlock * size; line += kLine) __builtin_prefetch(at + line);
}

template <class T>
SMP_INLINE void read(Block<T>& to, const void* from, std::int64_t begin,
                     std::int64_t count) noexcept {
  const auto* const at = static_cast<const T*>(from) + begin;
  if (count == kBlock) {
    std::memcpy(to.data(), at, sizeof to);
  } else {
    to.fill(T{});
    std::memcpy(to.data(), at, static_cast<std::size_t>(count) * sizeof(T));
  }
}

template <class T>
SMP_INLINE void write(const Block<T>& from, void* to, std::int64_t begin,
                      std::int64_t count) noexcept {
  auto* const at = static_cast<T*>(to) + begin;
  if (count == kBlock) {
    std::memcpy(at, from.data(), sizeof from);
  } else {
    std::memcpy(at, from.data(), static_cast<std::size_t>(count) * sizeof(T));
  }
}

/// What loops for one kind of processor are made of.
struct Parts {
  DrawBits draw;
  void (*of_halves)(Block<float>& to, const Block<std::uint16_t>& from);
  void (*to_halves)(Block<std::uint16_t>& to, const Block<float>& from);
};

void of_halves_portably(Block<float>& to, const Block<std::uint16_t>& from) {
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = of_half(from[i]);
}

void to_halves_portably(Block<std::uint16_t>& to, const Block<float>& from) {
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = to_half(from[i]);
}

#if defined(__x86_64__)
[[gnu::target("avx,f16c")]] void of_halves_by_eight(Block<float>& to,
                                                    const Block<std::uint16_t>& from) {
  for (std::size_t i = 0; i < from.size(); i += 8) {
    const auto bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from.data() + i));
    _mm256_storeu_ps(to.data() + i, _mm256_cvtph_ps(bits));
  }
}

[[gnu::target("avx,f16c")]] void to_halves_by_eight(Block<std::uint16_t>& to,
                                                    const Block<float>& from) {
  for (std::size_t i = 0; i < from.size(); i += 8) {
    const auto bits = _mm256_cvtps_ph(_mm256_loadu_ps(from.data() + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to.data() + i), bits);
  }
}
#endif

SMP_INLINE void read_numbers(Block<float>& to, const void* from, Number type, std::int64_t begin,
                             std::int64_t count, const Parts& parts) noexcept {
  if (type == Number::kFloat) return read(to, from, begin, count);
  Block<std::uint16_t> bits;
  read(bits, from, begin, count);
  if (type == Number::kBFloat16) {
    for (std::size_t i = 0; i < bits.size(); ++i) to[i] = of_bfloat16(bits[i]);
  } else {
    parts.of_halves(to, bits);
  }
}

/// Replaces values by the masters that round to them.
SMP_INLINE void take_masters(Block<float>& values, const float* masters, Number type,
                             std::int64_t begin, std::int64_t count, const Parts& parts) noexcept {
  Block<float> kept, rounded;
  read(kept, masters, begin, count);
  if (type == Number::kBFloat16) {
    for (std::size_t i = 0; i < kept.size(); ++i) rounded[i] = of_bfloat16(to_bfloat16(kept[i]));
  } else {
    Block<std::uint16_t> bits;
    parts.to_halves(bits, kept);
    parts.of_halves(rounded, bits);
  }
  for (std::size_t i = 0; i < kept.size(); ++i) {
    values[i] = rounded[i] == values[i] ? kept[i] : values[i];
  }
}

SMP_INLINE void round_block(Block<std::uint16_t>& to, const Block<float>& from,
                            const std::uint32_t* random) noexcept {
  Block<std::uint32_t> bits;
  std::memcpy(bits.data(), from.data(), sizeof bits);
  std::uint32_t large = 0;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    large |= (bits[i] & kMagnitude) >= kNeverInfinite ? 1u : 0u;
  }
  if (large == 0) {
    for (std::size_t i = 0; i < bits.size(); ++i) to[i] = by_chance_below(bits[i], random[i]);
  } else {
    for (std::size_t i = 0; i < bits.size(); ++i) to[i] = by_chance(bits[i], random[i]);
  }
}

SMP_INLINE void write_parameter(const Block<float>& values, const StepTensors& tensors,
                                const std::uint32_t* random, std::int64_t begin, std::int64_t count,
                                const Parts& parts) noexcept {
  if (tensors.master != nullptr) write(values, tensors.master, begin, count);
  if (tensors.type == Number::kFloat) return write(values, tensors.parameter, begin, count);
  Block<std::uint16_t> rounded;
  if (random != nullptr) {
    round_block(rounded, values, random);
  } else if (tensors.type == Number::kBFloat16) {
    for (std::size_t i = 0; i < values.size(); ++i) rounded[i] = to_bfloat16(values[i]);
  } else {
    parts.to_halves(rounded, values);
  }
  write(rounded, tensors.parameter, begin, count);
}

SMP_INLINE void penalise(Block<float>& gradient, const Block<float>& value,
                         float penalty) noexcept {
  if (penalty == 0) return;
  for (std::size_t i = 0; i < value.size(); ++i) {
    gradient[i] = __builtin_fmaf(value[i], penalty, gradient[i]);
  }
}

/// In the order of LibTorch's operators, with fused multiply-add where these have it.
SMP_INLINE void compute(Block<float>& value, Block<float>& gradient, const StepTensors& tensors,
                        const AdamFactors& f, bool by_chance, std::int64_t begin,
                        std::int64_t count) noexcept {
  Block<float> mean, square, below;
  read(mean, tensors.first, begin, count);
  read(square, tensors.second, begin, count);
  penalise(gradient, value, f.penalty);
  for (std::size_t i = 0; i < value.size(); ++i) {
    mean[i] = __builtin_fmaf(gradient[i], f.take1, mean[i] * f.beta1);
    square[i] = __builtin_fmaf(f.take2 * gradient[i], gradient[i], square[i] * f.beta2);
  }
  if (by_chance) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      below[i] = __builtin_sqrtf(square[i]) * f.inverse_root2 + f.eps;
    }
  } else {
    for (std::size_t i = 0; i < value.size(); ++i) {
      below[i] = __builtin_sqrtf(square[i]) / f.root2 + f.eps;
    }
  }
  for (std::size_t i = 0; i < value.size(); ++i) {
    value[i] = value[i] * f.decay + (f.step * mean[i]) / below[i];
  }
  write(mean, tensors.first, begin, count);
  write(square, tensors.second, begin, count);
}

SMP_INLINE void compute(Block<float>& value, Block<float>& gradient, const StepTensors& tensors,
                        const SgdFactors& f, bool, std::int64_t begin,
                        std::int64_t count) noexcept {
  penalise(gradient, value, f.penalty);
  if (f.momentum != 0) {
    Block<float> momentum;
    if (f.fresh) {
      momentum = gradient;
    } else {
      read(momentum, tensors.first, begin, count);
      for (std::size_t i = 0; i < value.size(); ++i) {
        momentum[i] = __builtin_fmaf(gradient[i], f.take, momentum[i] * f.momentum);
      }
    }
    write(momentum, tensors.first, begin, count);
    if (f.nesterov) {
      for (std::size_t i = 0; i < value.size(); ++i) {
        gradient[i] = __builtin_fmaf(momentum[i], f.momentum, gradient[i]);
      }
    } else {
      gradient = momentum;
    }
  }
  for (std::size_t i = 0; i < value.size(); ++i) {
    value[i] = __builtin_fmaf(gradient[i], f.step, value[i]);
  }
}

/// Calls `block(begin, count, bits)` for all elements; `bits` is nullptr unless by chance.
template <class Action>
SMP_INLINE void each_block(std::int64_t all, const StepRounding& rounding, DrawBits draw,
                           Action&& block) noexcept {
  std::array<std::uint32_t, kGroup + kBlock> bits;
  for (std::int64_t group = 0; group < all; group += kGroup) {
    const std::int64_t end = std::min(all, group + kGroup);
    const std::uint32_t* random = nullptr;
    if (rounding.by_chance) {
      const auto first = (rounding.first + group) / kBlock;
      const auto last = (rounding.first + end - 1) / kBlock;
      draw(bits.data(), rounding.key, first, last - first + 1);
      random = bits.data() + (rounding.first + group) % kBlock;
    }
    for (std::int64_t begin = group; begin < end; begin += kBlock) {
      block(begin, std::min(kBlock, end - begin),
            random == nullptr ? nullptr : random + (begin - group));
    }
  }
}

template <class Factors>
SMP_INLINE void step(const StepTensors& tensors, std::int64_t all, const StepRounding& rounding,
                     const Factors& factors, const Parts& parts) noexcept {
  const bool narrow = tensors.type != Number::kFloat;
  const auto gradient_size = size_of(tensors.gradient_type);
  each_block(
      all, rounding, parts.draw,
      [&](std::int64_t begin, std::int64_t count, const std::uint32_t* random)
          __attribute__((always_inline)) {
            if (narrow) {
              prefetch(tensors.parameter, begin, 2);
              prefetch(tensors.gradient, begin, gradient_size);
              prefetch(tensors.master, begin, 4);
              prefetch(tensors.first, begin, 4);
              prefetch(tensors.second, begin, 4);
            }
            Block<float> value, gradient;
            read_numbers(value, tensors.parameter, tensors.type, begin, count, parts);
            read_numbers(gradient, tensors.gradient, tensors.gradient_type, begin, count, parts);
            if (tensors.master != nullptr) {
              take_masters(value, tensors.master, tensors.type, begin, count, parts);
            }
            compute(value, gradient, tensors, factors, rounding.by_chance, begin, count);
            write_parameter(value, tensors, random, begin, count, parts);
          });
}

SMP_INLINE void round_all(const float* from, std::uint16_t* to, std::int64_t all,
                          const StepRounding& rounding, const Parts& parts) noexcept {
  each_block(
      all, rounding, parts.draw,
      [&](std::int64_t begin, std::int64_t count, const std::uint32_t* random)
          __attribute__((always_inline)) {
            Block<float> values;
            Block<std::uint16_t> rounded;
            read(values, from, begin, count);
            round_block(rounded, values, random);
            write(rounded, to, begin, count);
          });
}

#undef SMP_INLINE

constexpr Parts kPortable{draw_portably, of_halves_portably, to_halves_portably};
#if defined(__x86_64__)
constexpr Parts kByEight{draw_by_eight, of_halves_by_eight, to_halves_by_eight};
constexpr Parts kBySixteen{draw_by_sixteen, of_halves_by_eight, to_halves_by_eight};
#endif

// The loops for one kind of processor, whose instructions `target` allows.
#define SMP_STEP_LOOPS(name, target, parts)                                             \
  struct name {                                                                         \
    target static void adam(const StepTensors& tensors, std::int64_t count,             \
                            const StepRounding& rounding, const AdamFactors& factors) { \
      step(tensors, count, rounding, factors, parts);                                   \
    }                                                                                   \
    target static void sgd(const StepTensors& tensors, std::int64_t count,              \
                           const StepRounding& rounding, const SgdFactors& factors) {   \
      step(tensors, count, rounding, factors, parts);                                   \
    }                                                                                   \
    target static void round(const float* from, std::uint16_t* to, std::int64_t count,  \
                             const StepRounding& rounding) {                            \
      round_all(from, to, count, rounding, parts);                                      \
    }                                                                                   \
  }

SMP_STEP_LOOPS(Portable, , kPortable);
#if defined(__x86_64__)
SMP_STEP_LOOPS(ByEight, [[gnu::target("avx2,fma,f16c")]], kByEight);
SMP_STEP_LOOPS(
    BySixteen,
    [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c,prefer-vector-width=512")]],
    kBySixteen);
#endif
#undef SMP_STEP_LOOPS

template <class Loops>
StepLoops loops_of(const char* name) {
  return {name, Loops::adam, Loops::sgd, Loops::round};
}

std::vector<StepLoops> make_loops() {
  std::vector<StepLoops> loops;
#if defined(__x86_64__)
  const bool by_sixteen = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (by_sixteen) loops.push_back(loops_of<BySixteen>("AVX-512"));
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    loops.push_back(loops_of<ByEight>("AVX2"));
  }
#endif
  loops.push_back(loops_of<Portable>("portable"));
  return loops;
}

}  // namespace

const std::vector<StepLoops>& step_loops() {
  static const std::vector<StepLoops> loops = make_loops();
  return loops;
}

}  // namespace smp::precision
