// samples/gpt/plain_gpt.cpp: see the header. Modules are made in the order of gpt.cpp.
#include "plain_gpt.h"

namespace gpt {
namespace {

torch::nn::LayerNorm plain_norm(std::int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

/// As GPT-2 starts.
template <class Layer>
Layer drawn(Layer layer) {
  const torch::NoGradGuard no_grad;
  layer->weight.normal_(0, kDeviation);
  if constexpr (requires { layer->bias; }) {
    if (layer->bias.defined()) layer->bias.zero_();
  }
  return layer;
}

torch::nn::Linear plain_linear(std::int64_t in, std::int64_t out, bool bias = true) {
  return drawn(torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias)));
}

torch::nn::Embedding plain_table(std::int64_t rows, std::int64_t width) {
  return drawn(torch::nn::Embedding(rows, width));
}

}  // namespace

PlainAttentionImpl::PlainAttentionImpl(const GptConfig& config)
    : heads_(config.heads),
      pre_norm_(register_module("pre_norm", plain_norm(config.width))),
      query_(register_module("query", plain_linear(config.width, config.width))),
      key_(register_module("key", plain_linear(config.width, config.width))),
      value_(register_module("value", plain_linear(config.width, config.width))),
      dense_(register_module("dense", plain_linear(config.width, config.width))) {}

Tensor PlainAttentionImpl::heads_of(const Tensor& channels) const {
  return channels.unflatten(-1, {heads_, -1}).transpose(1, 2);
}

Tensor PlainAttentionImpl::forward(const Tensor& hidden) {
  const auto x = pre_norm_(hidden);
  const auto mixed = torch::scaled_dot_product_attention(
      heads_of(query_(x)), heads_of(key_(x)), heads_of(value_(x)), {}, 0.0, /*is_causal=*/true);
  return hidden + dense_(mixed.transpose(1, 2).flatten(2));
}

PlainOutputImpl::PlainOutputImpl(const GptConfig& config)
    : pre_norm_(register_module("pre_norm", plain_norm(config.width))),
      first_(register_module("first", plain_linear(config.width, 4 * config.width))),
      second_(register_module("second", plain_linear(4 * config.width, config.width))) {}

Tensor PlainOutputImpl::forward(const Tensor& hidden) {
  return hidden + second_(torch::gelu(first_(pre_norm_(hidden)), "tanh"));
}

PlainLayerImpl::PlainLayerImpl(const GptConfig& config)
    : attention_(register_module("attention", PlainAttention(config))),
      output_(register_module("output", PlainOutput(config))) {}

Tensor PlainLayerImpl::forward(const Tensor& hidden) { return output_(attention_(hidden)); }

PlainGptImpl::PlainGptImpl(const GptConfig& config)
    : wte_(register_module("wte", plain_table(config.vocabulary, config.width))),
      wpe_(register_module("wpe", plain_table(config.length, config.width))),
      h_(register_module("h", torch::nn::ModuleList())),
      ln_f_(register_module("ln_f", plain_norm(config.width))),
      lm_head_(register_module("lm_head", plain_linear(config.width, config.vocabulary, false))) {
  for (std::int64_t layer = 0; layer < config.layers; ++layer) h_->push_back(PlainLayer(config));
}

Tensor PlainGptImpl::forward(const Tensor& tokens) {
  Tensor x = wte_(tokens) + wpe_(torch::arange(tokens.size(1), tokens.options()));
  for (const auto& layer : *h_) x = layer->as<PlainLayer>()->forward(x);
  return lm_head_(ln_f_(x));
}

}  // namespace gpt
