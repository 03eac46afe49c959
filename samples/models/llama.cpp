// samples/models/llama.cpp: see llama.h.
#include "llama.h"

#include <cmath>

namespace models {
namespace {

nn::RMSNormOptions norm_options(const LlamaConfig& config) {
  return nn::RMSNormOptions(config.hidden_size)
      .eps(config.rms_norm_eps)
      .unit_offset(config.norm_unit_offset);
}

nn::DecoderLayerOptions layer_options(const LlamaConfig& config) {
  auto rotary = config.rope;
  auto attention = nn::GroupedQueryAttentionOptions(config.hidden_size, config.num_attention_heads)
                       .kv_heads(config.num_key_value_heads)
                       .rotary(rotary.head_dim(config.head_dim))
                       .bias(config.attention_bias)
                       .window(config.sliding_window);
  if (config.qk_norm) attention.qk_norm_eps(config.rms_norm_eps);
  const auto mlp = nn::GatedMlpOptions(config.hidden_size, config.intermediate_size)
                       .activation(config.activation);
  return {attention, mlp, norm_options(config)};
}

void draw_layer(nn::DecoderLayer& block, const LlamaConfig& config, int64_t layer) {
  const double deviation = config.initializer_range;
  const double last =
      nn::output_deviation(deviation, config.output_scale, layer, config.num_hidden_layers);
  for (auto& weight : {block->self_attn->q_proj->weight, block->self_attn->k_proj->weight,
                       block->self_attn->v_proj->weight, block->mlp->gate_proj->weight,
                       block->mlp->up_proj->weight}) {
    nn::init::normal_(weight, 0, deviation);
  }
  nn::init::normal_(block->self_attn->o_proj->weight, 0, last);
  nn::init::normal_(block->mlp->down_proj->weight, 0, last);
}

}  // namespace

LlamaModelImpl::LlamaModelImpl(const LlamaConfig& config)
    : config_(config),
      embed_tokens_(
          register_module("embed_tokens", nn::Embedding(config.vocab_size, config.hidden_size))),
      layers_(register_module("layers", nn::ModuleList())),
      norm_(register_module("norm", nn::RMSNorm(norm_options(config)))) {
  nn::init::normal_(embed_tokens_->weight, 0, config.initializer_range);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    nn::DecoderLayer block(layer_options(config));
    draw_layer(block, config, layer);
    layers_->push_back(block);
  }
}

Tensor LlamaModelImpl::embedded(const Tensor& tokens) {
  const Tensor x = embed_tokens_(tokens);
  if (!config_.scale_embeddings) return x;
  // By a number of the embedding's dtype.
  return x * torch::full({}, std::sqrt(static_cast<double>(config_.hidden_size)), x.options());
}

Tensor LlamaModelImpl::forward(const Tensor& tokens, const Tensor& present) {
  Tensor x = embedded(tokens);
  for (const auto& layer : *layers_) x = layer->as<nn::DecoderLayer>()->forward(x, {}, present);
  return norm_(x);
}

Tensor LlamaModelImpl::decode(const Tensor& tokens, const nn::CachedTokens& place) {
  Tensor x = embedded(tokens);
  for (const auto& layer : *layers_) x = layer->as<nn::DecoderLayer>()->decode(x, place);
  return norm_(x);
}

Tensor LlamaModelImpl::logits(const Tensor& hidden) {
  return torch::linear(hidden, embed_tokens_->weight);
}

LlamaImpl::LlamaImpl(const LlamaConfig& config)
    : model_(register_module("model", LlamaModel(config))) {
  if (config.tie_word_embeddings) return;
  lm_head_ = register_module(
      "lm_head", nn::Linear(nn::LinearOptions(config.hidden_size, config.vocab_size).bias(false)));
  nn::init::normal_(lm_head_->weight, 0, config.initializer_range);
}

Tensor LlamaImpl::forward(const Tensor& tokens) {
  const auto length = tokens.size(1) - 1;
  return torch::nn::functional::cross_entropy(scores(tokens.narrow(1, 0, length)).flatten(0, 1),
                                              tokens.narrow(1, 1, length).flatten());
}

Tensor LlamaImpl::scores(const Tensor& tokens, const Tensor& present) {
  const auto hidden = model_->forward(tokens, present);
  return lm_head_ ? lm_head_(hidden) : model_->logits(hidden);
}

Tensor LlamaImpl::decode(const Tensor& tokens, const nn::CachedTokens& place) {
  const auto last = model_->decode(tokens, place).narrow(1, -1, 1);
  return (lm_head_ ? lm_head_(last) : model_->logits(last)).squeeze(1);
}

}  // namespace models
