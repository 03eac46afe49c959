// smp/tp/distributed_embedding.h: a look-up table over the ranks of a TP_GROUP (paper §5.3).
//
// B rows of one rank's batch, T tensor-parallel ranks, N num_embeddings, D embedding_dim.
#pragma once

#include <torch/nn/modules/embedding.h>

#include <string>

#include "smp/module.h"
#include "smp/tp/distributed_module.h"

namespace smp {
namespace nn {

/// A torch::nn::Embedding with the table split along the width of its rows: rank j holds [N, D/T]
/// and looks up its part of the rows for the samples of all ranks.
///
///     i [B, ..] ─ all-gather ─► [T·B, ..] ─ look-up ─► [T·B, .., D/T] ─ all-to-all ─► [B, .., D]
///
/// Forward sends (T-1)·B indices and (T-1)/T·B·D elements from each rank, backward as many
/// elements. With a prescaled batch indices need not be gathered, and what was looked up is
/// gathered afterwards (docs/tensor_parallelism.md). It starts from the values of
/// torch::nn::Embedding after the same torch::manual_seed. Sizes in `options` are those of the
/// whole table. `sparse` gives sparse gradients; with `scale_grad_by_freq` the batch of each rank
/// counts its own indices. `max_norm` is that of whole rows: each rank sends (T-1) numbers more for
/// each distinct index.
class SMP_API DistributedEmbeddingImpl : public DistributedModule {
 public:
  DistributedEmbeddingImpl(std::int64_t num_embeddings, std::int64_t embedding_dim)
      : DistributedEmbeddingImpl(torch::nn::EmbeddingOptions(num_embeddings, embedding_dim)) {}
  /// Makes the slice of this rank of a new table.
  /// @throws UsageError        embedding_dim cannot be divided by T, or no session runs.
  /// @throws UnsupportedError  max_norm with norm_type 0: each look-up would shorten a row again.
  explicit DistributedEmbeddingImpl(const torch::nn::EmbeddingOptions& options);

  /// Stands in for `original`, whose weight becomes a slice.
  explicit DistributedEmbeddingImpl(torch::nn::EmbeddingImpl& original);
  /// Returns why `original` cannot be spread over `ranks` ranks, or an empty text if it can.
  static std::string obstacle(const torch::nn::EmbeddingImpl& original, int ranks);

  /// Looks up the rows of `indices`.
  /// @param indices  [B, ..], or a single index []; int64 or int32 in [0, N)
  /// @return [B, .., D], or [D]
  /// @throws UsageError  indices of another type
  at::Tensor forward(const at::Tensor& indices);
  void pretty_print(std::ostream& stream) const override;

  torch::nn::EmbeddingOptions options;
  at::Tensor weight;  ///< [N, D/T]
};

}  // namespace nn

template <>
inline constexpr bool draws_random_v<nn::DistributedEmbeddingImpl> = false;

namespace nn {

SMP_MODULE(DistributedEmbedding);

}  // namespace nn
}  // namespace smp
