// precision/block_loops.h: an optimizer's step of whole blocks, for any kind of processor. A source
// has `Lanes` for one kind and includes this after the pragma that names its instructions, so that
// all of this is compiled for them. `Lanes` has vectors of as many floats, as many words and
// integers of 32 bits and as many of 16, and what operators of vectors leave open: fma, root,
// halves and random bits. The rest is in GCC's vectors, which stay in registers from load to store.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "precision/numbers.h"
#include "precision/random_bits.h"
#include "precision/step_loop.h"

namespace smp::precision {

/// The gradient with Adam's or SGD's penalty of the parameter.
template <class Lanes>
SMP_INLINE Floats<Lanes> penalised(Floats<Lanes> gradient, Floats<Lanes> value,
                                   float penalty) noexcept {
  return penalty == 0 ? gradient : Lanes::fma(value, all_of<Lanes>(penalty), gradient);
}

/// How one vector is stepped. `begin` reads and writes the state, `end` returns the new value;
/// between them lies what other work should hide: the root, which takes the divider long. All is in
/// the order of LibTorch's operators, with fused multiply-add where these have it.
template <class Lanes>
struct Adam {
  using Factors = AdamFactors;
  Floats<Lanes> value, above, root;

  SMP_INLINE void begin(Floats<Lanes> old, Floats<Lanes> gradient, const StepTensors& tensors,
                        std::int64_t at, const AdamFactors& f) noexcept {
    gradient = penalised<Lanes>(gradient, old, f.penalty);
    const auto mean = Lanes::fma(gradient, all_of<Lanes>(f.take1),
                                 load<Floats<Lanes>>(tensors.first + at) * f.beta1);
    const auto square = Lanes::fma(gradient * f.take2, gradient,
                                   load<Floats<Lanes>>(tensors.second + at) * f.beta2);
    store(tensors.first + at, mean);
    store(tensors.second + at, square);
    value = old * f.decay;
    above = mean * f.step;
    root = Lanes::root(square);
  }
  SMP_INLINE Floats<Lanes> end(const AdamFactors& f, bool by_chance) const noexcept {
    const auto below = (by_chance ? root * f.inverse_root2 : root / f.root2) + f.eps;
    return value + above / below;
  }
};

template <class Lanes>
struct Sgd {
  using Factors = SgdFactors;
  Floats<Lanes> value;

  SMP_INLINE void begin(Floats<Lanes> old, Floats<Lanes> gradient, const StepTensors& tensors,
                        std::int64_t at, const SgdFactors& f) noexcept {
    gradient = penalised<Lanes>(gradient, old, f.penalty);
    if (f.momentum != 0) {
      auto momentum = gradient;
      if (!f.fresh) {
        momentum = Lanes::fma(gradient, all_of<Lanes>(f.take),
                              load<Floats<Lanes>>(tensors.first + at) * f.momentum);
      }
      store(tensors.first + at, momentum);
      gradient = f.nesterov ? Lanes::fma(momentum, all_of<Lanes>(f.momentum), gradient) : momentum;
    }
    value = Lanes::fma(gradient, all_of<Lanes>(f.step), old);
  }
  SMP_INLINE Floats<Lanes> end(const SgdFactors&, bool) const noexcept { return value; }
};

template <class Lanes>
struct Taken {
  using Factors = NoFactors;
  Floats<Lanes> value;

  SMP_INLINE void begin(Floats<Lanes>, Floats<Lanes> gradient, const StepTensors&, std::int64_t,
                        const NoFactors&) noexcept {
    const auto bits = reinterpret_cast<Words<Lanes>>(gradient);
    const auto quiet = gradient != gradient ? bits | kQuietNan << 16 : bits;
    value = reinterpret_cast<Floats<Lanes>>(quiet);
  }
  SMP_INLINE Floats<Lanes> end(const NoFactors&, bool) const noexcept { return value; }
};

/// What a parameter is, known to the compiler.
struct Form {
  Number type;
  bool masters = false, by_chance = false;
};

/// The parameter, or the masters where they round to it.
template <class Lanes, Form kForm>
SMP_INLINE Floats<Lanes> read_parameter(const StepTensors& tensors, std::int64_t begin) noexcept {
  const auto own = read<Lanes>(tensors.parameter, kForm.type, begin);
  if constexpr (!kForm.masters) return own;
  const auto kept = load<Floats<Lanes>>(tensors.master + begin);
  return rounded<Lanes>(kept, kForm.type) == own ? kept : own;
}

template <class Lanes, Form kForm>
SMP_INLINE void write_parameter(Floats<Lanes> value, const StepTensors& tensors, std::int64_t begin,
                                Words<Lanes> random) noexcept {
  if constexpr (kForm.masters) store(tensors.master + begin, value);
  if constexpr (kForm.type == Number::kFloat) {
    store(static_cast<float*>(tensors.parameter) + begin, value);
  } else {
    store(static_cast<std::uint16_t*>(tensors.parameter) + begin,
          kForm.type == Number::kHalf ? Lanes::to_halves(value)
          : kForm.by_chance           ? Lanes::upper_of(by_chance<Lanes>(value, random))
                                      : Lanes::upper_of(to_nearest<Lanes>(value)));
  }
}

/// Asks for the memory of the block that is 512 elements ahead.
SMP_INLINE void prefetch(const void* from, std::int64_t begin, std::int64_t size) noexcept {
  constexpr std::int64_t kAhead = 512, kLine = 64;
  if (from == nullptr) return;
  const auto* const ahead = static_cast<const char*>(from) + (begin + kAhead) * size;
  for (std::int64_t line = 0; line < kBlock * size; line += kLine) __builtin_prefetch(ahead + line);
}

SMP_INLINE void prefetch(const StepTensors& tensors, std::int64_t begin) noexcept {
  prefetch(tensors.parameter, begin, 2);
  prefetch(tensors.gradient, begin, tensors.gradient_type == Number::kFloat ? 4 : 2);
  prefetch(tensors.first, begin, 4);
  prefetch(tensors.second, begin, 4);
}

template <class Lanes, class Rule, Form kForm>
void step_blocks(StepTensors tensors, std::int64_t count, StepRounding rounding,
                 typename Rule::Factors factors) noexcept {
  constexpr std::int64_t kWidth = sizeof(Floats<Lanes>) / sizeof(float), kVectors = kBlock / kWidth;
  for (std::int64_t block = 0; block < count; block += kBlock) {
    // A block with draws is so long that the processor sees the next ones too late. The loops of
    // other forms are faster without.
    if constexpr (kForm.by_chance) prefetch(tensors, block);
    std::array<Rule, kVectors> rules;
    std::array<Words<Lanes>, kVectors> bits{};
#pragma GCC unroll 8
    for (std::int64_t i = 0; i < kVectors; ++i) {
      const auto begin = block + i * kWidth;
      rules[i].begin(read_parameter<Lanes, kForm>(tensors, begin),
                     read<Lanes>(tensors.gradient, tensors.gradient_type, begin), tensors, begin,
                     factors);
    }
    // While the divider works on the roots.
    if constexpr (kForm.by_chance)
      bits = Lanes::draw(rounding.key, (rounding.first + block) / kBlock);
#pragma GCC unroll 8
    for (std::int64_t i = 0; i < kVectors; ++i) {
      write_parameter<Lanes, kForm>(rules[i].end(factors, kForm.by_chance), tensors,
                                    block + i * kWidth, bits[i]);
    }
  }
}

/// Chooses the loop for what the parameter is.
template <class Lanes, class Rule>
void step_whole_blocks(StepTensors tensors, std::int64_t count, StepRounding rounding,
                       typename Rule::Factors factors) noexcept {
  constexpr auto choose = [](const StepTensors& of,
                             bool by_chance) -> BlockLoop<typename Rule::Factors> {
    const bool masters = of.master != nullptr;
    switch (of.type) {
      case Number::kFloat:
        return step_blocks<Lanes, Rule, Form{Number::kFloat}>;
      case Number::kHalf:
        return masters ? step_blocks<Lanes, Rule, Form{Number::kHalf, true}>
                       : step_blocks<Lanes, Rule, Form{Number::kHalf}>;
      case Number::kBFloat16:
        break;
    }
    if (by_chance) return step_blocks<Lanes, Rule, Form{Number::kBFloat16, false, true}>;
    return masters ? step_blocks<Lanes, Rule, Form{Number::kBFloat16, true}>
                   : step_blocks<Lanes, Rule, Form{Number::kBFloat16}>;
  };
  choose(tensors, rounding.by_chance)(tensors, count, rounding, factors);
}

template <class Lanes>
constexpr BlockLoops block_loops(const char* name) {
  return {name, step_whole_blocks<Lanes, Adam<Lanes>>, step_whole_blocks<Lanes, Sgd<Lanes>>,
          step_blocks<Lanes, Taken<Lanes>, Form{Number::kBFloat16, false, true}>};
}

}  // namespace smp::precision
