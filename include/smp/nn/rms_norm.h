// smp/nn/rms_norm.h: root-mean-square norms, as Llama, Qwen and Gemma have them.
#pragma once

#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/types.h>

#include <cstdint>
#include <ostream>

#include "smp/detail/export.h"
#include "smp/nn/layer.h"

namespace smp {
namespace nn {

/// Options of RMSNorm.
struct RMSNormOptions {
  RMSNormOptions(std::int64_t width) : width_(width) {}  // NOLINT: as torch::nn's options

  /// The size of the last axis, which is normalised.
  TORCH_ARG(std::int64_t, width);
  /// What is added to the mean square.
  TORCH_ARG(double, eps) = 1e-6;
  /// The weight holds its distance from one, starts at 0 and is multiplied before the result is
  /// cast back (Gemma). Otherwise it starts at 1 and is multiplied after (Llama).
  TORCH_ARG(bool, unit_offset) = false;
};

/// Divides by the root of the mean square over the last axis and multiplies by a weight: [..., W]
/// to
/// [..., W], in the input's dtype. Inputs of 16 bits are normalised in float32. Where the cast back
/// happens is as in Hugging Face's Llama and Gemma, which differs from torch::rms_norm: the weight
/// of Llama is multiplied in the input's dtype.
class SMP_API RMSNormImpl : public torch::nn::Cloneable<RMSNormImpl> {
 public:
  /// @throws UsageError  the width is not positive, or eps is negative.
  explicit RMSNormImpl(const RMSNormOptions& options);

  /// Normalises the last axis, which must have W elements.

  torch::Tensor forward(const torch::Tensor& input);
  /// Sets the weight to its first value.
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  RMSNormOptions options;
  torch::Tensor weight;  ///< [W]
};

}  // namespace nn

template <>
inline constexpr bool draws_random_v<nn::RMSNormImpl> = false;

namespace nn {

/// Like RMSNormImpl, routed.
SMP_MODULE(RMSNorm);

}  // namespace nn
}  // namespace smp
