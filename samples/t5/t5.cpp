// samples/t5/t5.cpp: blocks, stacks and the whole T5.
#include "t5.h"

#include <cmath>
#include <limits>

namespace t5 {
namespace {

constexpr float kNeverAttend = std::numeric_limits<float>::lowest();

}  // namespace

T5SelfAttentionLayerImpl::T5SelfAttentionLayerImpl(const T5Config& config, AttentionKind kind,
                                                   bool owns_position_bias)
    : owns_position_bias_(owns_position_bias),
      attention_(register_module("SelfAttention", T5Attention(config, kind, owns_position_bias))),
      layer_norm_(register_module("layer_norm", T5LayerNorm(config))),
      dropout_(register_module("dropout", nn::Dropout(config.dropout_rate))) {}

BlockOutput T5SelfAttentionLayerImpl::forward(const Tensor& hidden, const Tensor& mask,
                                              const Tensor& position_bias) {
  Tensor own_bias;
  if (owns_position_bias_) own_bias = attention_->relative_bias(hidden.size(1));
  const Tensor normed = layer_norm_(hidden);
  const Tensor& bias = owns_position_bias_ ? own_bias : position_bias;
  return {hidden + dropout_(attention_(normed, normed, mask, bias)), own_bias};
}

T5CrossAttentionLayerImpl::T5CrossAttentionLayerImpl(const T5Config& config)
    : attention_(
          register_module("EncDecAttention", T5Attention(config, AttentionKind::kCross, false))),
      layer_norm_(register_module("layer_norm", T5LayerNorm(config))),
      dropout_(register_module("dropout", nn::Dropout(config.dropout_rate))) {}

Tensor T5CrossAttentionLayerImpl::forward(const Tensor& hidden, const Tensor& memory,
                                          const Tensor& memory_mask) {
  return hidden + dropout_(attention_(layer_norm_(hidden), memory, memory_mask, Tensor()));
}

T5FeedForwardLayerImpl::T5FeedForwardLayerImpl(const T5Config& config)
    : dense_(register_module("DenseReluDense", T5Dense(config))),
      layer_norm_(register_module("layer_norm", T5LayerNorm(config))),
      dropout_(register_module("dropout", nn::Dropout(config.dropout_rate))) {}

Tensor T5FeedForwardLayerImpl::forward(const Tensor& hidden) {
  return hidden + dropout_(dense_(layer_norm_(hidden)));
}

T5BlockImpl::T5BlockImpl(const T5Config& config, AttentionKind kind, bool owns_position_bias)
    : self_attention_(config, kind, owns_position_bias), feed_forward_(config) {
  nn::ModuleList layers;
  layers->push_back(self_attention_);
  if (kind == AttentionKind::kDecoder) {
    cross_attention_ = T5CrossAttentionLayer(config);
    layers->push_back(cross_attention_);
  }
  layers->push_back(feed_forward_);
  register_module("layer", layers);
}

BlockOutput T5BlockImpl::forward(const Tensor& hidden, const Tensor& mask,
                                 const Tensor& position_bias, const Tensor& memory,
                                 const Tensor& memory_mask) {
  BlockOutput state = self_attention_(hidden, mask, position_bias);
  if (cross_attention_) state.hidden = cross_attention_(state.hidden, memory, memory_mask);
  state.hidden = feed_forward_(state.hidden);
  return state;
}

T5StackImpl::T5StackImpl(const T5Config& config, AttentionKind kind, int64_t num_blocks)
    : final_layer_norm_(config), dropout_(config.dropout_rate) {
  nn::ModuleList list;
  for (int64_t index = 0; index < num_blocks; ++index) {
    blocks_.emplace_back(config, kind, /*owns_position_bias=*/index == 0);
    list->push_back(blocks_.back());
  }
  register_module("block", list);
  register_module("final_layer_norm", final_layer_norm_);
  register_module("dropout", dropout_);
}

Tensor T5StackImpl::forward(const Tensor& embedded, const Tensor& mask, const Tensor& memory,
                            const Tensor& memory_mask) {
  Tensor hidden = dropout_(embedded);
  Tensor position_bias;
  for (auto& block : blocks_) {
    BlockOutput output = block(hidden, mask, position_bias, memory, memory_mask);
    hidden = output.hidden;
    if (output.position_bias.defined()) position_bias = output.position_bias;
  }
  return dropout_(final_layer_norm_(hidden));
}

T5Impl::T5Impl(const T5Config& config)
    : config_(config),
      shared_(register_module("shared", T5Embedding(config))),
      encoder_(
          register_module("encoder", T5Stack(config, AttentionKind::kEncoder, config.num_layers))),
      decoder_(register_module(
          "decoder", T5Stack(config, AttentionKind::kDecoder, config.num_decoder_layers))) {
  if (config.tie_word_embeddings) return;
  lm_head_ = register_module(
      "lm_head", nn::Linear(nn::LinearOptions(config.d_model, config.vocab_size).bias(false)));
  torch::NoGradGuard no_grad;
  lm_head_->weight.normal_(0.0, 1.0 / std::sqrt(static_cast<double>(config.d_model)));
}

Tensor T5Impl::forward(const Tensor& input_ids, const Tensor& labels) {
  const Tensor input_mask = padding_mask(input_ids, config_.pad_token_id);
  const Tensor memory = encoder_(shared_(input_ids), input_mask);
  const Tensor target_mask = causal_mask(labels.size(1));
  const Tensor hidden = decoder_(shared_(shift_right(labels)), target_mask, memory, input_mask);
  return lm_head_ ? lm_head_(hidden) : shared_->logits(hidden);
}

Tensor T5Impl::shift_right(const Tensor& labels) const {
  const Tensor start = torch::full_like(labels.slice(1, 0, 1), config_.pad_token_id);
  const Tensor shifted = torch::cat({start, labels.slice(1, 0, -1)}, 1);
  return shifted.masked_fill(shifted == config_.ignored_label, config_.pad_token_id);
}

Tensor padding_mask(const Tensor& input_ids, int64_t pad_token_id) {
  const Tensor is_padding = (input_ids == pad_token_id).unsqueeze(1).unsqueeze(1);
  return torch::zeros(is_padding.sizes()).masked_fill(is_padding, kNeverAttend);
}

Tensor causal_mask(int64_t length) {
  return torch::full({1, 1, length, length}, kNeverAttend).triu(/*diagonal=*/1);
}

}  // namespace t5
