// tp/plain_transformer.h: transformer layers as they are written in textbooks, with the names and
// in the order of the distributed ones, which are compared with them.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

#include "smp/tp/distributed_transformer.h"

namespace smp::tp {

inline constexpr std::int64_t kHidden = 8;

/// A LayerNorm or, with "rms", what is divided by the root of the mean square alone.
struct PlainNormImpl : torch::nn::Module {
  PlainNormImpl(const std::string& kind, double epsilon)
      : weight(register_parameter("weight", torch::ones({kHidden}))), eps(epsilon) {
    if (kind == "layer") bias = register_parameter("bias", torch::zeros({kHidden}));
  }
  at::Tensor forward(const at::Tensor& x) {
    if (bias.defined()) return torch::layer_norm(x, {kHidden}, weight, bias, eps);
    return x * torch::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps) * weight;
  }
  at::Tensor weight, bias;
  const double eps;
};
TORCH_MODULE(PlainNorm);

template <class Options>
PlainNorm norm_of(const Options& options) {
  return PlainNorm(options.norm, options.layernorm_epsilon);
}

template <class Options>
torch::nn::Linear linear(std::int64_t in, std::int64_t out, const Options& options, bool bias) {
  torch::nn::Linear layer(torch::nn::LinearOptions(in, out).bias(bias));
  if (!options.use_normal_initialization) return layer;
  const torch::NoGradGuard no_grad;
  layer->weight.normal_(0, options.initializer_range);
  if (bias) layer->bias.zero_();
  return layer;
}

/// The bucket of a key that is `distance` after its query, as T5's paper tells it.
inline std::int64_t bucket_of(std::int64_t distance, const RelativePositionOptions& options,
                              bool is_causal) {
  const auto count = is_causal ? options.num_buckets : options.num_buckets / 2;
  const auto first = !is_causal && distance > 0 ? count : 0;
  const auto far = is_causal ? std::max<std::int64_t>(-distance, 0) : std::abs(distance);
  const auto exact = count / 2;
  if (far < exact) return first + far;
  const double share = std::log(static_cast<double>(far) / static_cast<double>(exact)) /
                       std::log(static_cast<double>(options.max_distance) / exact);
  const auto beyond = static_cast<std::int64_t>(share * static_cast<double>(count - exact));
  return first + std::min(exact + beyond, count - 1);
}

/// ALiBi's slopes as its paper tells them: a geometric series for powers of two, and for other
/// numbers those of the power below, then every second one of the power above.
inline std::vector<double> slopes_of(std::int64_t heads, double bias_max) {
  std::int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  std::vector<double> slopes;
  const auto slope = [&](double i, double of) { return std::pow(2.0, -bias_max * i / of); };
  for (std::int64_t i = 1; i <= power; ++i) slopes.push_back(slope(double(i), double(power)));
  for (std::int64_t i = 1; std::ssize(slopes) < heads; i += 2) {
    slopes.push_back(slope(double(i), 2.0 * double(power)));
  }
  return slopes;
}

/// Attention as it is written in textbooks.
struct PlainAttentionImpl : torch::nn::Module {
  explicit PlainAttentionImpl(const AttentionLayerOptions& with) : options(with) {
    const auto channels = options.num_attention_heads * options.attention_head_size;
    const auto project = [&](std::int64_t in, std::int64_t out) {
      return linear(in, out, options, options.bias);
    };
    if (options.pre_layernorm) pre = register_module("pre_norm", norm_of(options));
    query = register_module("query", project(kHidden, channels));
    const auto key_heads = options.num_key_value_heads.value_or(options.num_attention_heads);
    const auto key_channels = key_heads * options.attention_head_size;
    key = register_module("key", project(kHidden, key_channels));
    value = register_module("value", project(kHidden, key_channels));
    dense = register_module("dense", linear(channels, kHidden, options, options.output_bias));
    if (options.relative_positions) {
      table = register_module("relative_attention_bias",
                              torch::nn::Embedding(options.relative_positions->num_buckets,
                                                   options.num_attention_heads));
      const torch::NoGradGuard no_grad;
      if (options.use_normal_initialization) table->weight.normal_(0, options.initializer_range);
    }
    if (options.post_layernorm) post = register_module("post_norm", norm_of(options));
  }
  at::Tensor heads(const at::Tensor& x) const {
    return x.view({x.size(0), x.size(1), -1, options.attention_head_size}).transpose(1, 2);
  }
  /// One for each head of queries.
  at::Tensor keys(const at::Tensor& x) const {
    const auto all = heads(x);
    return all.repeat_interleave(options.num_attention_heads / all.size(1), 1);
  }
  /// What distances add to the scores of each head; nothing if they add nothing.
  at::Tensor position_bias(std::int64_t length) {
    const auto heads = options.num_attention_heads;
    if (!options.relative_positions && !options.alibi_bias_max) return {};
    std::vector<at::Tensor> rows;
    const auto slopes = slopes_of(heads, options.alibi_bias_max.value_or(1));
    for (std::int64_t i = 0; i < length; ++i) {
      for (std::int64_t j = 0; j < length; ++j) {
        const auto falling = torch::tensor(slopes, torch::kDouble) * -double(std::abs(j - i));
        rows.push_back(options.alibi_bias_max
                           ? falling
                           : table->weight[bucket_of(j - i, *options.relative_positions,
                                                     options.causal_mask_size.has_value())]);
      }
    }
    return torch::stack(rows).view({1, length, length, heads}).permute({0, 3, 1, 2});
  }
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor& mask, const at::Tensor& cross,
                     const at::Tensor& positions = {}, const at::Tensor& biases = {}) {
    const auto x = pre.is_empty() ? hidden : pre(hidden);
    const auto source = options.cross_attention ? cross : x;
    auto queries = heads(query(x)), all_keys = keys(key(source));
    if (options.rotary) {
      nn::RotaryEmbeddingImpl rotary(*options.rotary);
      std::tie(queries, all_keys) = rotary.forward(queries, all_keys, positions);
    }
    auto scores = torch::einsum("bhqd,bhkd->bhqk", {queries, all_keys}) *
                  options.attention_scale.value_or(
                      1 / std::sqrt(static_cast<double>(options.attention_head_size)));
    const auto added = biases.defined() ? biases : position_bias(hidden.size(1));
    if (added.defined()) scores = scores + added;
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
  PlainNorm pre{nullptr}, post{nullptr};
  torch::nn::Linear query{nullptr}, key{nullptr}, value{nullptr}, dense{nullptr};
  torch::nn::Embedding table{nullptr};
};
TORCH_MODULE(PlainAttention);

struct PlainOutputImpl : torch::nn::Module {
  explicit PlainOutputImpl(const TransformerOutputLayerOptions& with) : options(with) {
    const auto project = [&](std::int64_t in, std::int64_t out) {
      return linear(in, out, options, options.bias);
    };
    if (options.pre_layernorm) pre = register_module("pre_norm", norm_of(options));
    if (is_gated()) gate = register_module("gate", project(kHidden, options.intermediate_size));
    first = register_module("first", project(kHidden, options.intermediate_size));
    second = register_module("second", project(options.intermediate_size, kHidden));
    if (options.post_layernorm) post = register_module("post_norm", norm_of(options));
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
  PlainNorm pre{nullptr}, post{nullptr};
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
    with.rotary.reset();
    with.relative_positions.reset();
    with.alibi_bias_max.reset();
    if (cross) cross_attention = register_module("cross_attention", PlainAttention(with));
    output = register_module("output", PlainOutput(output_with));
  }
  TransformerState forward(TransformerState state) {
    if (attention->options.relative_positions) {
      state.position_bias = attention->position_bias(state.hidden.size(1));
    }
    state.hidden =
        attention(state.hidden, state.mask, at::Tensor(), state.positions, state.position_bias);
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
inline constexpr const char* kLayouts[] = {"speed", "memory", "sequence"};

/// Parts of names of parameters that are whole and of which ranks see parts: keys that ranks share
/// and, where a rank has its positions, what is of a row.
inline std::vector<std::string> seen_in_parts(const std::string& layout) {
  std::vector<std::string> names{"key.", "value."};
  if (layout != "sequence") return names;
  for (const auto* name : {"norm.", "dense.bias", "second.bias"}) names.push_back(name);
  return names;
}

inline TransformerOutputLayerOptions output_options() {
  TransformerOutputLayerOptions options;
  options.hidden_size = kHidden;
  options.intermediate_size = 12;
  options.hidden_dropout_prob = 0;
  return options;
}

}  // namespace smp::tp
