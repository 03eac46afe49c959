// tp/layers/position_biases.h: what is added to the scores of this rank's heads because of where
// tokens stand.
//
// A attention heads, T tensor-parallel ranks, S sequence.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>

#include "smp/tp/distributed_module.h"
#include "smp/tp/relative_positions.h"

namespace smp::tp {

/// The table of relative positions, cut along the heads.
class RelativePositionsImpl : public DistributedModule {
 public:
  /// @param heads     A
  /// @param is_causal whether positions see no later ones
  /// @param deviation of the first values, N(0, deviation); nothing: 1, as torch::nn::Embedding
  /// @throws UsageError  an option is out of range.
  RelativePositionsImpl(const RelativePositionOptions& options, std::int64_t heads, bool is_causal,
                        std::optional<double> deviation);

  /// Returns the biases of the first `heads` heads of this rank, [1, heads, S, S], in the table's
  /// type. Gradients of 16 bits are added up in float32.
  at::Tensor forward(std::int64_t length, std::int64_t heads);

  at::Tensor weight;  ///< [num_buckets, ceil(A/T)]

 private:
  const RelativePositionOptions options_;
  const bool is_causal_;
};

TORCH_MODULE(RelativePositions);

/// Returns the bucket of each distance of a key from a query, [S, S]: integers.
at::Tensor buckets_of_distances(const RelativePositionOptions& options, std::int64_t length,
                                bool is_causal, at::Device device);

/// Returns how ALiBi's scores fall with the distance, for `heads` of `all` heads from `first` on:
/// [1, heads, S, S] of the type and device of `like`. Slopes are 2^(-bias_max (i + 1) / n) of head
/// i where A is a power of two n, else those of the next power, every second one first.
at::Tensor alibi_biases(std::int64_t first, std::int64_t heads, std::int64_t all, double bias_max,
                        std::int64_t length, const at::Tensor& like);

}  // namespace smp::tp
