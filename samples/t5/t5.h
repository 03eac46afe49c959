// samples/t5/t5.h: T5, the encoder-decoder transformer (Raffel et al., 2020), in plain LibTorch.
//
// Nothing here knows about ranks. Two things make the model ready to be cut into stages:
// `SMP_MODULE` stands where `TORCH_MODULE` would, and `nn::` is `smp::nn::`.
//
// Shapes and masks are as in layers.h.
#pragma once

#include <vector>

#include "layers.h"

namespace t5 {

/// What a block hands to the next one.
struct BlockOutput {
  Tensor hidden;         ///< [B, Q, D]
  Tensor position_bias;  ///< [1, H, Q, Q] from the block that owns the table, else undefined
};

/// Self-attention with its normalisation and residual connection.
class T5SelfAttentionLayerImpl : public torch::nn::Module {
 public:
  T5SelfAttentionLayerImpl(const T5Config& config, AttentionKind kind, bool owns_position_bias);

  /// Computes the position bias if this layer owns the table, else uses the one it is given.
  BlockOutput forward(const Tensor& hidden, const Tensor& mask, const Tensor& position_bias);

 private:
  bool owns_position_bias_;
  T5Attention attention_;
  T5LayerNorm layer_norm_;
  nn::Dropout dropout_;
};
SMP_MODULE(T5SelfAttentionLayer);

/// Attention from the decoder to the encoder's output, with norm and residual connection.
class T5CrossAttentionLayerImpl : public torch::nn::Module {
 public:
  explicit T5CrossAttentionLayerImpl(const T5Config& config);

  Tensor forward(const Tensor& hidden, const Tensor& memory, const Tensor& memory_mask);

 private:
  T5Attention attention_;
  T5LayerNorm layer_norm_;
  nn::Dropout dropout_;
};
SMP_MODULE(T5CrossAttentionLayer);

/// The feed-forward network, with norm and residual connection.
class T5FeedForwardLayerImpl : public torch::nn::Module {
 public:
  explicit T5FeedForwardLayerImpl(const T5Config& config);

  Tensor forward(const Tensor& hidden);

 private:
  T5Dense dense_;
  T5LayerNorm layer_norm_;
  nn::Dropout dropout_;
};
SMP_MODULE(T5FeedForwardLayer);

/// One block of the encoder (two layers) or of the decoder (three).
class T5BlockImpl : public torch::nn::Module {
 public:
  T5BlockImpl(const T5Config& config, AttentionKind kind, bool owns_position_bias);

  /// `memory` and `memory_mask`, the encoder's output and its mask, are read in a decoder only.
  BlockOutput forward(const Tensor& hidden, const Tensor& mask, const Tensor& position_bias,
                      const Tensor& memory, const Tensor& memory_mask);

 private:
  T5SelfAttentionLayer self_attention_;
  T5CrossAttentionLayer cross_attention_{nullptr};
  T5FeedForwardLayer feed_forward_;
};
SMP_MODULE(T5Block);

/// The blocks of the encoder or of the decoder, and the final norm.
class T5StackImpl : public torch::nn::Module {
 public:
  T5StackImpl(const T5Config& config, AttentionKind kind, int64_t num_blocks);

  /// The first block makes the position bias, all later ones share it.
  Tensor forward(const Tensor& embedded, const Tensor& mask, const Tensor& memory = {},
                 const Tensor& memory_mask = {});

 private:
  std::vector<T5Block> blocks_;
  T5LayerNorm final_layer_norm_;
  nn::Dropout dropout_;
};
SMP_MODULE(T5Stack);

/// The whole model.
class T5Impl : public torch::nn::Module {
 public:
  explicit T5Impl(const T5Config& config);

  /// Token ids [B, S] and labels [B, T] to scores [B, T, vocabulary] for each label.
  ///
  /// The decoder reads the labels shifted right by one, so the score of a label is computed from
  /// the labels before it.
  Tensor forward(const Tensor& input_ids, const Tensor& labels);

 private:
  Tensor shift_right(const Tensor& labels) const;

  T5Config config_;
  T5Embedding shared_;
  T5Stack encoder_;
  T5Stack decoder_;
  nn::Linear lm_head_{nullptr};
};
SMP_MODULE(T5);

/// [B, S] ids to [B, 1, 1, S]: no query may look at padding.
Tensor padding_mask(const Tensor& input_ids, int64_t pad_token_id);

/// [1, 1, length, length]: no query may look at a later key.
Tensor causal_mask(int64_t length);

}  // namespace t5
