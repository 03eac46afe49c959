// smp/tp/distributed_linear.h: a fully connected layer over the ranks of a TP_GROUP (paper §5.2,
// Figure 6).
//
// B rows of one rank's batch, T tensor-parallel ranks, I in_features, O out_features.
#pragma once

#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <string>

#include "smp/module.h"
#include "smp/tp/distributed_module.h"

namespace smp {
namespace nn {

/// Selects the channels of a layer that are dealt to the ranks.
enum class LinearSplit : std::uint8_t { kInputs, kOutputs };

/// y = x Wᵀ + b, as torch::nn::Linear, with W split along input channels: rank j holds W_j [O, I/T]
/// and computes its part of the sum for the samples of all ranks.
///
///     x [B, .., I] ─ all-to-all ─► [T·B, .., I/T] ─ W_j ─► [T·B, .., O] ─ reduce-scatter ─► y [B,
///     .., O]
///
/// Other than in the paper every rank holds the bias and adds it to its own samples, so that all
/// ranks have the same parameters; the sum is the same. Forward sends (T-1)/T·B·I + (T-1)·B·O
/// elements from each rank, backward as many.
///
/// Or along output channels, which sends less where there are more of them than inputs: rank j
/// holds W_j [O/T, I] and b_j [O/T].
///
///     x [B, .., I] ─ all-gather ─► [T·B, .., I] ─ W_j, b_j ─► [T·B, .., O/T]
///       ─ all-to-all ─► y [B, .., O]
///
/// Forward sends (T-1)·B·I + (T-1)/T·B·O elements from each rank then, backward as many. What is
/// sent with a prescaled batch is in docs/tensor_parallelism.md.
///
/// It starts from the values of torch::nn::Linear after the same torch::manual_seed. Sizes in
/// `options` are those of the whole layer. Types are floating-point; the batches of the ranks have
/// one shape.
class SMP_API DistributedLinearImpl : public DistributedModule {
 public:
  DistributedLinearImpl(std::int64_t in_features, std::int64_t out_features,
                        LinearSplit split = LinearSplit::kInputs)
      : DistributedLinearImpl(torch::nn::LinearOptions(in_features, out_features), split) {}
  /// Makes this rank's slices of a new layer.
  /// @throws UsageError  the channels that are split cannot be divided by T, or no session runs.
  explicit DistributedLinearImpl(const torch::nn::LinearOptions& options,
                                 LinearSplit split = LinearSplit::kInputs);

  /// Stands in for `original`, whose weight becomes a slice along its inputs.
  explicit DistributedLinearImpl(torch::nn::LinearImpl& original);
  /// Returns why `original` cannot be spread over `ranks` ranks, or an empty text if it can.
  static std::string obstacle(const torch::nn::LinearImpl& original, int ranks);

  /// Computes y = x Wᵀ + b for this rank's batch.
  /// @param input  [B, .., I], or one row [I]
  /// @return [B, .., O], or [O]
  /// @throws UsageError  `input` has another shape, or one that other ranks do not have
  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

  torch::nn::LinearOptions options;
  const LinearSplit split;
  at::Tensor weight;  ///< [O, I/T], or [O/T, I]
  at::Tensor bias;    ///< [O], whole on every rank, or [O/T]; undefined without bias

 private:
  at::Tensor sum_of_inputs(const at::Tensor& input);
  at::Tensor join_outputs(const at::Tensor& input);
};

}  // namespace nn

template <>
inline constexpr bool draws_random_v<nn::DistributedLinearImpl> = false;

namespace nn {

SMP_MODULE(DistributedLinear);

}  // namespace nn
}  // namespace smp
