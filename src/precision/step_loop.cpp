// precision/step_loop.cpp: any neighbours as whole blocks, and the loops of this processor.
#include "precision/step_loop.h"

#include <algorithm>
#include <cstring>

#include "precision/random_bits.h"

namespace smp::precision {
namespace {

std::int64_t size_of(Number type) { return type == Number::kFloat ? 4 : 2; }

void copy(void* to, const void* from, std::int64_t bytes) {
  if (to != nullptr) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

/// Memory of a whole block, of which some neighbours are elements `place` and on.
class PaddedBlock {
 public:
  PaddedBlock(const StepTensors& neighbours, std::int64_t place, std::int64_t count)
      : neighbours_(neighbours), count_(count), whole_(neighbours) {
    whole_.parameter = parameter_;
    whole_.gradient = gradient_;
    if (whole_.master != nullptr) whole_.master = master_;
    if (whole_.first != nullptr) whole_.first = first_;
    if (whole_.second != nullptr) whole_.second = second_;
    inside_ = moved(whole_, place);
    copy_all_but_gradient(inside_, neighbours_);
    copy(gradient_ + place * size_of(whole_.gradient_type), neighbours_.gradient,
         count_ * size_of(whole_.gradient_type));
  }
  const StepTensors& whole() const { return whole_; }
  void write_back() const { copy_all_but_gradient(neighbours_, inside_); }

 private:
  void copy_all_but_gradient(const StepTensors& to, const StepTensors& from) const {
    copy(to.parameter, from.parameter, count_ * size_of(whole_.type));
    copy(to.master, from.master, count_ * 4);
    copy(to.first, from.first, count_ * 4);
    copy(to.second, from.second, count_ * 4);
  }

  StepTensors neighbours_;
  std::int64_t count_;
  StepTensors whole_, inside_;
  alignas(64) char parameter_[kBlock * 4] = {}, gradient_[kBlock * 4] = {};
  alignas(64) float master_[kBlock] = {}, first_[kBlock] = {}, second_[kBlock] = {};
};

/// The neighbours in parts: whole blocks where there are such, and what lies before and after.
template <class Factors>
void step_all(BlockLoop<Factors> loop, const StepTensors& tensors, std::int64_t count,
              StepRounding rounding, const Factors& factors) {
  const std::int64_t origin = rounding.by_chance ? rounding.first : 0;
  for (std::int64_t begin = 0, size = 0; begin < count; begin += size) {
    const auto place = (origin + begin) % kBlock, left = count - begin;
    const auto part = moved(tensors, begin);
    rounding.first = origin + begin - place;
    if (place == 0 && left >= kBlock) {
      size = left - left % kBlock;
      loop(part, size, rounding, factors);
    } else {
      size = std::min(kBlock - place, left);
      const PaddedBlock block(part, place, size);
      loop(block.whole(), kBlock, rounding, factors);
      block.write_back();
    }
  }
}

std::vector<StepLoops> make_loops() {
  std::vector<StepLoops> loops;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx2 && avx512) loops.emplace_back(avx512_loops());
  if (avx2) loops.emplace_back(avx2_loops());
#endif
  loops.emplace_back(portable_loops());
  return loops;
}

}  // namespace

StepTensors moved(StepTensors tensors, std::int64_t by) {
  tensors.parameter = static_cast<char*>(tensors.parameter) + by * size_of(tensors.type);
  tensors.gradient =
      static_cast<const char*>(tensors.gradient) + by * size_of(tensors.gradient_type);
  for (auto* const numbers : {&tensors.master, &tensors.first, &tensors.second}) {
    if (*numbers != nullptr) *numbers += by;
  }
  return tensors;
}

void StepLoops::step(const StepTensors& tensors, std::int64_t count, const StepRounding& rounding,
                     const AdamFactors& factors) const {
  step_all(loops_.adam, tensors, count, rounding, factors);
}

void StepLoops::step(const StepTensors& tensors, std::int64_t count, const StepRounding& rounding,
                     const SgdFactors& factors) const {
  step_all(loops_.sgd, tensors, count, rounding, factors);
}

void StepLoops::round(const float* from, std::uint16_t* to, std::int64_t count,
                      const StepRounding& rounding) const {
  StepTensors tensors;
  tensors.parameter = to;
  tensors.type = Number::kBFloat16;
  tensors.gradient = from;
  step_all(loops_.round, tensors, count, rounding, NoFactors{});
}

const std::vector<StepLoops>& step_loops() {
  static const std::vector<StepLoops> loops = make_loops();
  return loops;
}

}  // namespace smp::precision
