// tp/plain_transformer.h: transformer layers as they are written in textbooks, with the names and
// in the order of the distributed ones, which are compared with them.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "smp/tp/distributed_transformer.h"

namespace smp::tp {

inline constexpr std::int64_t kHidden = 8;

inline torch::nn::LayerNorm norm(double eps) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kHidden}).eps(eps));
}

inline torch::nn::Linear linear(std::int64_t in, std::int64_t out, bool normal, double deviation) {
  torch::nn::Linear layer(in, out);
  if (!normal) return layer;
  const torch::NoGradGuard no_grad;
  layer->weight.normal_(0, deviation);
  layer->bias.zero_();
  return layer;
}

/// Attention as it is written in textbooks.
struct PlainAttentionImpl : torch::nn::Module {
  explicit PlainAttentionImpl(const AttentionLayerOptions& with) : options(with) {
    const auto channels = options.num_attention_heads * options.attention_head_size;
    const auto project = [&](std::int64_t in, std::int64_t out) {
      return linear(in, out, options.use_normal_initialization, options.initializer_range);
    };
    if (options.pre_layernorm) pre = register_module("pre_norm", norm(options.layernorm_epsilon));
    query = register_module("query", project(kHidden, channels));
    const auto key_heads = options.num_key_value_heads.value_or(options.num_attention_heads);
    const auto key_channels = key_heads * options.attention_head_size;
    key = register_module("key", project(kHidden, key_channels));
    value = register_module("value", project(kHidden, key_channels));
    dense = register_module("dense", project(channels, kHidden));
    if (options.post_layernorm)
      post = register_module("post_norm", norm(options.layernorm_epsilon));
  }
  at::Tensor heads(const at::Tensor& x) const {
    return x.view({x.size(0), x.size(1), -1, options.attention_head_size}).transpose(1, 2);
  }
  /// One for each head of queries.
  at::Tensor keys(const at::Tensor& x) const {
    const auto all = heads(x);
    return all.repeat_interleave(options.num_attention_heads / all.size(1), 1);
  }
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor& mask, const at::Tensor& cross) {
    const auto x = pre.is_empty() ? hidden : pre(hidden);
    const auto source = options.cross_attention ? cross : x;
    auto scores = torch::einsum("bhqd,bhkd->bhqk", {heads(query(x)), keys(key(source))}) /
                  std::sqrt(static_cast<double>(options.attention_head_size));
    if (options.causal_mask_size) {
      auto later = torch::zeros({scores.size(2), scores.size(3)}, scores.options());
      for (std::int64_t i = 0; i < later.size(0); ++i) {
        for (std::int64_t j = i + 1; j < later.size(1); ++j) later[i][j] = -INFINITY;
      }
      scores = scores + later;
    }
    if (mask.defined()) scores = scores + mask;
    const auto mixed = torch::einsum("bhqk,bhkd->bqhd", {scores.softmax(-1), keys(value(source))});
    const auto y = hidden + dense(mixed.flatten(2));
    return post.is_empty() ? y : post(y);
  }
  const AttentionLayerOptions options;
  torch::nn::LayerNorm pre{nullptr}, post{nullptr};
  torch::nn::Linear query{nullptr}, key{nullptr}, value{nullptr}, dense{nullptr};
};
TORCH_MODULE(PlainAttention);

struct PlainOutputImpl : torch::nn::Module {
  explicit PlainOutputImpl(const TransformerOutputLayerOptions& with) : options(with) {
    const auto project = [&](std::int64_t in, std::int64_t out) {
      return linear(in, out, options.use_normal_initialization, options.initializer_range);
    };
    if (options.pre_layernorm) pre = register_module("pre_norm", norm(options.layernorm_epsilon));
    if (is_gated()) gate = register_module("gate", project(kHidden, options.intermediate_size));
    first = register_module("first", project(kHidden, options.intermediate_size));
    second = register_module("second", project(options.intermediate_size, kHidden));
    if (options.post_layernorm)
      post = register_module("post_norm", norm(options.layernorm_epsilon));
  }
  at::Tensor forward(const at::Tensor& hidden) {
    const auto x = pre.is_empty() ? hidden : pre(hidden);
    const auto active = is_gated() ? activated(gate(x)) * first(x) : activated(first(x));
    const auto y = hidden + second(active);
    return post.is_empty() ? y : post(y);
  }
  bool is_gated() const { return options.activation.find("glu") != std::string::npos; }
  at::Tensor activated(const at::Tensor& x) const {
    const auto& name = options.activation;
    if (name == "swiglu") return torch::silu(x);
    if (name == "relu" || name == "reglu") return torch::relu(x);
    return torch::gelu(x, name == "gelu" || name == "geglu" ? "none" : "tanh");
  }
  const TransformerOutputLayerOptions options;
  torch::nn::LayerNorm pre{nullptr}, post{nullptr};
  torch::nn::Linear gate{nullptr}, first{nullptr}, second{nullptr};
};
TORCH_MODULE(PlainOutput);

/// A layer of plain parts, in the order in which the distributed one makes its own.
struct PlainLayerImpl : torch::nn::Module {
  PlainLayerImpl(AttentionLayerOptions with, const TransformerOutputLayerOptions& output_with) {
    const bool cross = with.cross_attention;
    with.cross_attention = false;
    attention = register_module("attention", PlainAttention(with));
    with.cross_attention = true;
    with.causal_mask_size.reset();
    if (cross) cross_attention = register_module("cross_attention", PlainAttention(with));
    output = register_module("output", PlainOutput(output_with));
  }
  TransformerState forward(TransformerState state) {
    state.hidden = attention(state.hidden, state.mask, at::Tensor());
    if (!cross_attention.is_empty()) {
      state.hidden = cross_attention(state.hidden, state.cross_mask, state.cross_states);
    }
    state.hidden = output(state.hidden);
    return state;
  }
  PlainAttention attention{nullptr}, cross_attention{nullptr};
  PlainOutput output{nullptr};
};
TORCH_MODULE(PlainLayer);

inline AttentionLayerOptions attention_options() {
  AttentionLayerOptions options;
  options.num_attention_heads = 4;
  options.attention_head_size = 3;
  options.hidden_size = kHidden;
  options.attention_dropout_prob = options.hidden_dropout_prob = 0;
  return options;
}

/// Layouts that layers can have.
inline constexpr const char* kLayouts[] = {"speed", "memory"};

inline TransformerOutputLayerOptions output_options() {
  TransformerOutputLayerOptions options;
  options.hidden_size = kHidden;
  options.intermediate_size = 12;
  options.hidden_dropout_prob = 0;
  return options;
}

}  // namespace smp::tp
