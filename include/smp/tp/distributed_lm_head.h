// smp/tp/distributed_lm_head.h: a whole language model over the ranks of a TP_GROUP (paper §5.3).
//
// B rows of one rank's batch, S sequence, H hidden size, V tokens of the vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "smp/module.h"
#include "smp/tp/distributed_transformer.h"
#include "smp/tp/distributed_vocabulary.h"

namespace smp {

struct TransformerLMHeadOptions {
  AttentionLayerOptions attention = {};  ///< of every layer; without cross_attention
  TransformerOutputLayerOptions output = {};
  std::int64_t num_layers = 12;
  std::int64_t vocab_size = 30522;    ///< any number
  std::int64_t num_positions = 1024;  ///< longest sequence
  std::int64_t num_token_types = 0;   ///< 0: there are none
  double embedding_dropout_prob = 0.1;
};

namespace nn {

/// Embeddings of tokens, positions and, if wanted, token types; layers; a last norm if those have
/// their norms before; and scores by the table of the tokens, split along the vocabulary
/// (DistributedVocabulary), without bias. Positions and types are whole on each rank. With the
/// deviation of `attention`, all weights start from N(0, initializer_range).
class SMP_API DistributedTransformerLMHeadImpl : public torch::nn::Module {
 public:
  /// @throws UsageError  as the layers; layers with cross-attention; hidden sizes differ.
  explicit DistributedTransformerLMHeadImpl(const TransformerLMHeadOptions& options);
  ~DistributedTransformerLMHeadImpl() override;

  /// @param tokens  [B, S] int64
  /// @param mask    [B or 1, 1, 1, S], added to attention scores; undefined: none
  /// @param types   [B, S] int64 of the token types; undefined: all 0, or there are none
  /// @return  scores [B, S, V] of what is at each position
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& mask, const at::Tensor& types);
  /// Cross entropy of forward(tokens, mask, types) and `labels` [B, S] (-100: costs nothing), in
  /// nats, [B, S]. Scores of the whole vocabulary are on no rank.
  at::Tensor losses(const at::Tensor& tokens, const at::Tensor& labels, const at::Tensor& mask,
                    const at::Tensor& types);

  const TransformerLMHeadOptions options;

 private:
  struct Parts;
  at::Tensor hidden_of(const at::Tensor& tokens, const at::Tensor& mask, const at::Tensor& types);
  std::shared_ptr<Parts> parts_;
};
SMP_MODULE(DistributedTransformerLMHead, losses);

}  // namespace nn
}  // namespace smp
