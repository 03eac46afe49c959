// smp/tp/distributed_vocabulary.h: the table of a language model, which turns tokens into vectors
// and vectors into scores of tokens, over the ranks of a TP_GROUP (paper §5.3; Shoeybi et al.,
// Megatron-LM, 2019, section 3).
//
// B rows of one rank's batch, S sequence, H width, V tokens, T tensor-parallel ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "smp/module.h"
#include "smp/tp/distributed_module.h"

namespace smp {
namespace nn {

/// One table for both, split along the tokens: of c = ceil(V/T) each, rank j holds tokens j·c to
/// (j+1)·c - 1. Rows beyond V are zeros that nothing reads, and in no file; below V/T stands for c.
/// Methods are routed: called from another stage of a pipeline they run where the table is.
///
/// Elements that each rank sends in forward; in backward as many, but for whole numbers:
///
///     forward  all-gather of tokens, own rows or zeros, reduce-scatter
///              (T-1)·B·S·H, and (T-1)·B·S tokens
///     scores   all-gather, product, all-to-all
///              (T-1)·B·S·(H + V/T)
///     losses   all-gather, product, two numbers a row (split_cross_entropy.h)
///              (T-1)·B·S·(H + 2), and (T-1)·B·S labels
///
/// What is sent with a prescaled batch is in docs/tensor_parallelism.md.
class SMP_API DistributedVocabularyImpl : public DistributedModule {
 public:
  /// Makes this rank's slice of a new table. Values start as those of
  /// torch::nn::Embedding(num_tokens, width) after the same torch::manual_seed; with a deviation,
  /// from N(0, deviation) after that.
  /// @throws UsageError  no session runs.
  DistributedVocabularyImpl(std::int64_t num_tokens, std::int64_t width,
                            std::optional<double> deviation = {});

  // B may be left out everywhere, as with the layers of torch::nn: a single token, one row.

  /// Returns the vectors of tokens. @param tokens  [B, ..] int64 or int32 in [0, V).
  /// @return [B, .., H]
  at::Tensor forward(const at::Tensor& tokens);
  /// Returns the products of `hidden` [B, .., H] with the vectors of all tokens: [B, .., V].
  at::Tensor scores(const at::Tensor& hidden);
  /// Returns the cross entropy of scores(hidden) in nats, without any rank having these scores: [B,
  /// ..].
  /// @param hidden  [B, .., H]
  /// @param labels  [B, ..] int64 or uint8 in [0, V), or -100: costs nothing
  at::Tensor losses(const at::Tensor& hidden, const at::Tensor& labels);

  const std::int64_t num_tokens;
  at::Tensor weight;  ///< [ceil(V/T), H]

 private:
  void require_hidden(const at::Tensor& hidden, const char* what) const;
  at::Tensor own_scores(const at::Tensor& batch) const;
};

}  // namespace nn

template <>
inline constexpr bool draws_random_v<nn::DistributedVocabularyImpl> = false;

namespace nn {

SMP_MODULE(DistributedVocabulary, scores, losses);

}  // namespace nn
}  // namespace smp
