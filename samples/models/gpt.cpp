// samples/models/gpt.cpp: the transformer, in plain LibTorch code.
#include "gpt.h"

namespace models {
namespace {

nn::LayerNorm layer_norm(int64_t width) { return nn::LayerNorm(nn::LayerNormOptions({width})); }

}  // namespace

AttentionImpl::AttentionImpl(const GptConfig& config)
    : heads_(config.heads),
      qkv_(register_module("qkv", nn::Linear(config.width, 3 * config.width))),
      out_(register_module("out", nn::Linear(config.width, config.width))) {}

Tensor AttentionImpl::forward(const Tensor& x) {
  const auto heads = qkv_(x).unflatten(-1, {3, heads_, -1}).permute({2, 0, 3, 1, 4});
  const auto y = torch::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, 0.0,
                                                     /*is_causal=*/true);
  return out_(y.transpose(1, 2).flatten(2));
}

BlockImpl::BlockImpl(const GptConfig& config)
    : norm1_(register_module("norm1", layer_norm(config.width))),
      norm2_(register_module("norm2", layer_norm(config.width))),
      attention_(register_module("attention", Attention(config))),
      up_(register_module("up", nn::Linear(config.width, 4 * config.width))),
      down_(register_module("down", nn::Linear(4 * config.width, config.width))) {}

Tensor BlockImpl::forward(const Tensor& x) {
  const auto y = x + attention_(norm1_(x));
  return y + down_(torch::gelu(up_(norm2_(y)), "tanh"));
}

TransformerImpl::TransformerImpl(const GptConfig& config)
    : wte_(register_module("wte", nn::Embedding(config.vocabulary, config.width))),
      wpe_(register_module("wpe", nn::Embedding(config.length, config.width))),
      h_(register_module("h", nn::ModuleList())),
      ln_f_(register_module("ln_f", layer_norm(config.width))) {
  for (int64_t layer = 0; layer < config.layers; ++layer) h_->push_back(Block(config));
}

Tensor TransformerImpl::forward(const Tensor& tokens) {
  Tensor x = wte_(tokens) + wpe_(torch::arange(tokens.size(1), tokens.options()));
  for (const auto& block : *h_) x = block->as<Block>()->forward(x);
  return ln_f_(x);
}

Tensor TransformerImpl::logits(const Tensor& hidden) { return torch::linear(hidden, wte_->weight); }

GptImpl::GptImpl(const GptConfig& config)
    : transformer_(register_module("transformer", Transformer(config))) {
  if (config.tied) return;
  lm_head_ = register_module(
      "lm_head", nn::Linear(nn::LinearOptions(config.width, config.vocabulary).bias(false)));
}

Tensor GptImpl::forward(const Tensor& tokens) {
  const auto length = tokens.size(1) - 1;
  return torch::nn::functional::cross_entropy(scores(tokens.narrow(1, 0, length)).flatten(0, 1),
                                              tokens.narrow(1, 1, length).flatten());
}

Tensor GptImpl::scores(const Tensor& tokens) {
  const auto hidden = transformer_(tokens);
  return lm_head_ ? lm_head_(hidden) : transformer_->logits(hidden);
}

smp::hf::NameMap published_names() {
  constexpr bool kTurned = true;
  const std::string theirs = "transformer.h.{}.", ours = "transformer.h.{}.";
  smp::hf::NameMap names(smp::hf::Family::kGpt2);
  names.add({{theirs + "ln_1.*", {ours + "norm1.*"}},
             {theirs + "ln_2.*", {ours + "norm2.*"}},
             {theirs + "attn.c_attn.weight", {ours + "attention.qkv.weight"}, kTurned},
             {theirs + "attn.c_attn.bias", {ours + "attention.qkv.bias"}},
             {theirs + "attn.c_proj.weight", {ours + "attention.out.weight"}, kTurned},
             {theirs + "attn.c_proj.bias", {ours + "attention.out.bias"}},
             {theirs + "mlp.c_fc.weight", {ours + "up.weight"}, kTurned},
             {theirs + "mlp.c_fc.bias", {ours + "up.bias"}},
             {theirs + "mlp.c_proj.weight", {ours + "down.weight"}, kTurned},
             {theirs + "mlp.c_proj.bias", {ours + "down.bias"}}});
  return names;
}

Tensor draw_sequences(int64_t rows, const GptConfig& config) {
  const auto start = torch::randint(config.vocabulary, {rows, 1});
  const auto stride = torch::randint(1, 8, {rows, 1});
  return (start + stride * torch::arange(config.length)) % config.vocabulary;
}

}  // namespace models
