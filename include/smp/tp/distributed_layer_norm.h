// smp/tp/distributed_layer_norm.h: layer normalisation over the ranks of a TP_GROUP
// (paper §5.3, App. F.2).
//
// B rows of one rank's batch, T tensor-parallel ranks, H the normalised size.
#pragma once

#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <string>
#include <vector>

#include "smp/module.h"
#include "smp/tp/distributed_module.h"

namespace smp {
namespace nn {

/// A torch::nn::LayerNorm with rows cut into T slices: rank j normalises the j-th slice for the
/// samples of all ranks with its [H/T] of weight and bias. Of several normalised dimensions the
/// first that T divides is cut; H stands for all of them.
///
///     x [B, .., H] ─ all-to-all ─► [T·B, .., H/T] ─ two moments of all ─► ─ all-to-all ─►
///     [B, .., H]
///
/// The moments are sums and sums of squares in double precision, so that a mean that is large
/// against the deviation costs rows of float or of half precision no digits. Forward sends
/// 2 (T-1)/T·B·H elements from each rank, and 4 (T-1)·B doubles; backward as many. With a prescaled
/// batch each rank takes its slice, and all are gathered (docs/tensor_parallelism.md).
class SMP_API DistributedLayerNormImpl : public DistributedModule {
 public:
  explicit DistributedLayerNormImpl(std::int64_t size)
      : DistributedLayerNormImpl(torch::nn::LayerNormOptions({size})) {}
  /// Makes this rank's slices of a new weight and bias.
  /// @throws UsageError  T divides no normalised dimension, or no session runs.
  explicit DistributedLayerNormImpl(const torch::nn::LayerNormOptions& options);

  /// Stands in for `original`, whose weight and bias become slices.
  explicit DistributedLayerNormImpl(torch::nn::LayerNormImpl& original);
  /// Returns why `original` cannot be spread over `ranks` ranks, or an empty text if it can.
  static std::string obstacle(const torch::nn::LayerNormImpl& original, int ranks);

  /// Normalises the last dimensions, as many as normalized_shape has.
  /// @param input  [B, .., H], or one row [H]; floating-point, of the type of the weight, or
  /// float16
  ///               or bfloat16 where that is float32
  /// @return of the shape and type of `input`
  /// @throws UsageError  another shape or type
  at::Tensor forward(const at::Tensor& input);
  /// Does the same for slices: every rank of the group has its [.., H/T] of the same rows, cut
  /// along the dimension that T divides.
  at::Tensor normalize_slices(const at::Tensor& slices);
  void pretty_print(std::ostream& stream) const override;

  torch::nn::LayerNormOptions options;
  at::Tensor weight;  ///< [H/T]; undefined without elementwise_affine
  at::Tensor bias;    ///< [H/T]; undefined without elementwise_affine

 private:
  static std::int64_t sliced_dim(const std::vector<std::int64_t>& shape);

  const std::int64_t sliced_dim_;  // of the normalised ones
};

}  // namespace nn

template <>
inline constexpr bool draws_random_v<nn::DistributedLayerNormImpl> = false;

namespace nn {

SMP_MODULE(DistributedLayerNorm, normalize_slices);

}  // namespace nn
}  // namespace smp
