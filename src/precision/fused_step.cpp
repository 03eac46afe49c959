// precision/fused_step.cpp: tensors as pointers, and their elements for all threads.
#include "precision/fused_step.h"

#include <ATen/ATen.h>

#include "base/check.h"
#include "precision/each_run.h"

namespace smp::precision {
namespace {

std::optional<Number> number_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return Number::kFloat;
    case at::kBFloat16:
      return Number::kBFloat16;
    case at::kHalf:
      return Number::kHalf;
    default:
      return std::nullopt;
  }
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_cpu() && tensor.is_contiguous() &&
         !tensor.is_inference() && !tensor.is_neg() && number_of(tensor.scalar_type()).has_value();
}

float* floats_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}

float* moved(float* from, std::int64_t by) { return from == nullptr ? nullptr : from + by; }

const void* moved(const void* from, std::int64_t by, Number type) {
  return static_cast<const char*>(from) + by * (type == Number::kFloat ? 4 : 2);
}

template <class Factors>
using Loop = void (*)(const StepTensors&, std::int64_t, const StepRounding&, const Factors&);

template <class Factors>
void step(Loop<Factors> loop, const FusedTensors& tensors, const std::optional<Chance>& chance,
          const Factors& factors) {
  SMP_ASSERT(can_fuse(tensors), "a step of ", tensors.parameter.scalar_type());
  SMP_ASSERT(!chance || tensors.parameter.scalar_type() == at::kBFloat16, "rounds ",
             tensors.parameter.scalar_type(), " by chance");
  const auto all = tensors.parameter.numel();
  if (all == 0) return;
  StepTensors whole;
  whole.parameter = tensors.parameter.mutable_data_ptr();
  whole.type = *number_of(tensors.parameter.scalar_type());
  whole.gradient = tensors.gradient.const_data_ptr();
  whole.gradient_type = *number_of(tensors.gradient.scalar_type());
  whole.master = floats_of(tensors.master);
  whole.first = floats_of(tensors.first);
  whole.second = floats_of(tensors.second);
  const auto part = chance ? chance->part : WholeIndex{all, all, 0};
  each_run(part, all, [&](std::int64_t begin, std::int64_t count, std::int64_t place) {
    auto own = whole;
    own.parameter = const_cast<void*>(moved(whole.parameter, begin, whole.type));
    own.gradient = moved(whole.gradient, begin, whole.gradient_type);
    own.master = moved(whole.master, begin);
    own.first = moved(whole.first, begin);
    own.second = moved(whole.second, begin);
    loop(own, count, {chance.has_value(), chance ? chance->key : 0, place}, factors);
  });
  tensors.parameter.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

bool can_fuse(const FusedTensors& tensors) {
  const auto fits = [&](const at::Tensor& other) {
    return is_plain(other) && other.sizes() == tensors.parameter.sizes();
  };
  const auto is_state = [&](const at::Tensor& state) {
    return !state.defined() || (fits(state) && state.scalar_type() == at::kFloat);
  };
  return is_plain(tensors.parameter) && fits(tensors.gradient) && is_state(tensors.master) &&
         is_state(tensors.first) && is_state(tensors.second);
}

void fused_step(const FusedTensors& tensors, const std::optional<Chance>& chance,
                const AdamFactors& factors) {
  step(step_loops().front().adam, tensors, chance, factors);
}

void fused_step(const FusedTensors& tensors, const std::optional<Chance>& chance,
                const SgdFactors& factors) {
  step(step_loops().front().sgd, tensors, chance, factors);
}

}  // namespace smp::precision
