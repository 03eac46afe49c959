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

template <class Factors>
void step(const FusedTensors& tensors, const std::optional<Chance>& chance,
          const Factors& factors) {
  SMP_ASSERT(can_fuse(tensors), "a step of ", tensors.parameter.scalar_type());
  SMP_ASSERT(!chance || tensors.parameter.scalar_type() == at::kBFloat16, "rounds ",
             tensors.parameter.scalar_type(), " by chance");
  SMP_ASSERT(
      !tensors.master.defined() || (!chance && tensors.parameter.scalar_type() != at::kFloat),
      "masters of what is ", chance ? "rounded by chance" : "float32");
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
  const auto& loops = step_loops().front();
  each_run(part, all, [&](std::int64_t begin, std::int64_t count, std::int64_t place) {
    loops.step(moved(whole, begin), count, {chance.has_value(), chance ? chance->key : 0, place},
               factors);
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
  step(tensors, chance, factors);
}

void fused_step(const FusedTensors& tensors, const std::optional<Chance>& chance,
                const SgdFactors& factors) {
  step(tensors, chance, factors);
}

}  // namespace smp::precision
