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

/// The sizes of a language model, and the options of its layers.
struct TransformerLMHeadOptions {
  AttentionLayerOptions attention = {};  ///< of every layer, with cross-attention or without
  TransformerOutputLayerOptions output = {};
  std::int64_t num_layers = 12;
  std::int64_t vocab_size = 30522;  ///< any number
  /// Longest sequence; 0: there is no table of positions, and any length will do.
  std::int64_t num_positions = 1024;
  std::int64_t num_token_types = 0;  ///< 0: there are none
  double embedding_dropout_prob = 0.1;
};

/// The inputs of a language model; all but the tokens may be left out.
struct LanguageInputs {
  at::Tensor tokens;     ///< [B, S] int64
  at::Tensor mask;       ///< [B or 1, 1, 1, S], added to attention scores; undefined: none
  at::Tensor types;      ///< [B, S] int64 of the token types; undefined: all 0, or there are none
  at::Tensor positions;  ///< [B or 1, S] int64; undefined: 0 to S - 1
  at::Tensor cross_states;  ///< [B, S', H] where layers have cross-attention, and only there
  at::Tensor cross_mask;    ///< [B or 1, 1, 1, S']; undefined: none
};

namespace nn {

/// Embeddings of tokens and, if wanted, of positions and token types; layers; a last norm if the
/// layers have their norms before (pre_layernorm); and scores by the table of the tokens, split
/// along the vocabulary (DistributedVocabulary), without bias. Positions and types are whole on
/// each rank. With the deviation of `attention`, all weights start from N(0, initializer_range).
class SMP_API DistributedTransformerLMHeadImpl : public torch::nn::Module {
 public:
  /// Makes the layers. @throws UsageError  as the layers; hidden sizes differ.
  explicit DistributedTransformerLMHeadImpl(const TransformerLMHeadOptions& options);
  ~DistributedTransformerLMHeadImpl() override;

  /// Returns the result of the layers after the last norm: [B, S, H].
  /// @throws UsageError  inputs do not fit.
  at::Tensor hidden(const LanguageInputs& inputs);
  /// Returns the scores of all tokens of the vocabulary at each position: [B, S, V]. @throws as
  /// hidden().
  at::Tensor scores(const LanguageInputs& inputs);
  /// Returns the cross entropy of scores(inputs) and `labels` [B, S] in nats: [B, S]. A label of
  /// -100 costs nothing. No rank holds the scores of the whole vocabulary. @throws as hidden().
  at::Tensor losses_of(const LanguageInputs& inputs, const at::Tensor& labels);

  // Without positions and cross-attention.

  /// Returns scores() of these inputs.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& mask, const at::Tensor& types);
  /// Returns losses_of() these inputs.
  at::Tensor losses(const at::Tensor& tokens, const at::Tensor& labels, const at::Tensor& mask,
                    const at::Tensor& types);

  const TransformerLMHeadOptions options;

 private:
  struct Parts;
  void require_fitting(const LanguageInputs& inputs) const;
  at::Tensor embedded(const LanguageInputs& inputs);
  std::shared_ptr<Parts> parts_;
};
SMP_MODULE(DistributedTransformerLMHead, losses, hidden, scores, losses_of);

}  // namespace nn
}  // namespace smp
