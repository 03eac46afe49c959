// samples/t5/layers.h: the layers a T5 block is made of.
//
// Shapes: B batch, S input length, T target length, Q queries, K keys, H heads, D = d_model.
// Masks are added to the attention scores: 0 where a query may look, the lowest float elsewhere.
// The names under which parameters are registered are those of the public T5 checkpoints.
#pragma once

#include <smp/smp.h>
#include <torch/torch.h>

#include "config.h"

namespace t5 {

namespace nn = smp::nn;
using torch::Tensor;

/// The embedding table `shared`: reads it for the tokens and, when tied, for the logits too.
class T5EmbeddingImpl : public torch::nn::Module {
 public:
  explicit T5EmbeddingImpl(const T5Config& config);

  /// Token ids [B, S] to vectors [B, S, D].
  Tensor forward(const Tensor& token_ids);

  /// Vectors [B, T, D] to scores [B, T, vocabulary] against the same table.
  Tensor logits(const Tensor& hidden);

  Tensor weight;
};
SMP_MODULE(T5Embedding, logits);

/// Scales to unit root mean square: no mean is subtracted, no bias is added.
class T5LayerNormImpl : public torch::nn::Module {
 public:
  explicit T5LayerNormImpl(const T5Config& config);

  Tensor forward(const Tensor& hidden);

  Tensor weight;

 private:
  double epsilon_;
};
SMP_MODULE(T5LayerNorm);

/// The bucket of each `relative_position` (key position - query position), all integers.
///
/// Half of the buckets are exact distances, the others grow logarithmically up to `max_distance`. A
/// bidirectional stack splits the buckets between the past and the future; a causal one has only
/// the past.
Tensor relative_position_bucket(const Tensor& relative_position, bool bidirectional,
                                int64_t num_buckets, int64_t max_distance);

/// What a T5 attention is there for.
enum class AttentionKind {
  kEncoder,  ///< self-attention that sees both directions
  kDecoder,  ///< self-attention that sees the past only
  kCross,    ///< from the decoder into the encoder's output; knows no positions
};

/// Multi-head attention as T5 does it: no biases, no scaling of the scores (the initialisation
/// makes up for it), positions only through a bias that is learned for each bucket and head.
class T5AttentionImpl : public torch::nn::Module {
 public:
  T5AttentionImpl(const T5Config& config, AttentionKind kind, bool owns_position_bias);

  /// Attends from `hidden` [B, Q, D] to `memory` [B, K, D].
  /// @param mask           broadcasts to [B, H, Q, K].
  /// @param position_bias  [1, H, Q, K], or undefined for none.
  Tensor forward(const Tensor& hidden, const Tensor& memory, const Tensor& mask,
                 const Tensor& position_bias);

  /// The learned bias [1, H, length, length] of self-attention over `length` tokens. Only the first
  /// block of a stack owns the table.
  Tensor relative_bias(int64_t length);

 private:
  Tensor split_heads(const Tensor& hidden) const;

  T5Config config_;
  AttentionKind kind_;
  nn::Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, o_{nullptr};
  nn::Embedding relative_attention_bias_{nullptr};
  nn::Dropout dropout_;
};
SMP_MODULE(T5Attention, relative_bias);

/// The feed-forward network: ReLU, or GELU gated by a second projection.
class T5DenseImpl : public torch::nn::Module {
 public:
  explicit T5DenseImpl(const T5Config& config);

  Tensor forward(const Tensor& hidden);

 private:
  nn::Linear wi_{nullptr};                    // ReLU
  nn::Linear wi_0_{nullptr}, wi_1_{nullptr};  // gated: the activated half and the linear half
  nn::Linear wo_{nullptr};
  nn::Dropout dropout_;
};
SMP_MODULE(T5Dense);

}  // namespace t5
