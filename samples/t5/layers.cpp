// samples/t5/layers.cpp: embedding, normalisation, attention and feed-forward network of T5.
#include "layers.h"

#include <cmath>

namespace t5 {
namespace {

/// A projection without bias whose weights start from a normal distribution.
nn::Linear projection(int64_t inputs, int64_t outputs, double deviation) {
  nn::Linear linear(nn::LinearOptions(inputs, outputs).bias(false));
  torch::NoGradGuard no_grad;
  linear->weight.normal_(0.0, deviation);
  return linear;
}

double inverse_root(int64_t size) { return 1.0 / std::sqrt(static_cast<double>(size)); }

}  // namespace

T5EmbeddingImpl::T5EmbeddingImpl(const T5Config& config)
    : weight(register_parameter("weight", torch::randn({config.vocab_size, config.d_model}))) {}

Tensor T5EmbeddingImpl::forward(const Tensor& token_ids) {
  return torch::embedding(weight, token_ids);
}

Tensor T5EmbeddingImpl::logits(const Tensor& hidden) {
  // Rows of the table have length sqrt(D): without the factor the scores would be too sharp.
  return torch::linear(hidden * inverse_root(weight.size(1)), weight);
}

T5LayerNormImpl::T5LayerNormImpl(const T5Config& config)
    : weight(register_parameter("weight", torch::ones({config.d_model}))),
      epsilon_(config.layer_norm_epsilon) {}

Tensor T5LayerNormImpl::forward(const Tensor& hidden) {
  return hidden * torch::rsqrt(hidden.square().mean(-1, /*keepdim=*/true) + epsilon_) * weight;
}

Tensor relative_position_bucket(const Tensor& relative_position, bool bidirectional,
                                int64_t num_buckets, int64_t max_distance) {
  Tensor first_bucket = torch::zeros_like(relative_position);
  Tensor distance;
  if (bidirectional) {
    num_buckets /= 2;
    first_bucket = (relative_position > 0).to(torch::kLong) * num_buckets;
    distance = relative_position.abs();
  } else {
    distance = (-relative_position).clamp_min(0);
  }
  const int64_t num_exact = num_buckets / 2;
  const Tensor times_exact = distance.clamp_min(num_exact).to(torch::kFloat) / num_exact;
  const double range = std::log(static_cast<double>(max_distance) / num_exact);
  const Tensor beyond = (torch::log(times_exact) / range * (num_buckets - num_exact));
  const Tensor far = (num_exact + beyond.to(torch::kLong)).clamp_max(num_buckets - 1);
  return first_bucket + torch::where(distance < num_exact, distance, far);
}

T5AttentionImpl::T5AttentionImpl(const T5Config& config, AttentionKind kind,
                                 bool owns_position_bias)
    : config_(config), kind_(kind), dropout_(config.dropout_rate) {
  const int64_t inner = config.num_heads * config.d_kv;
  const double narrow = inverse_root(config.d_model);
  q_ = register_module("q", projection(config.d_model, inner, narrow * inverse_root(config.d_kv)));
  k_ = register_module("k", projection(config.d_model, inner, narrow));
  v_ = register_module("v", projection(config.d_model, inner, narrow));
  o_ = register_module("o", projection(inner, config.d_model, inverse_root(inner)));
  register_module("dropout", dropout_);
  if (owns_position_bias) {
    nn::Embedding table(config.relative_attention_num_buckets, config.num_heads);
    torch::NoGradGuard no_grad;
    table->weight.normal_(0.0, narrow);
    relative_attention_bias_ = register_module("relative_attention_bias", table);
  }
}

Tensor T5AttentionImpl::split_heads(const Tensor& hidden) const {
  return hidden.view({hidden.size(0), hidden.size(1), config_.num_heads, config_.d_kv})
      .transpose(1, 2);
}

Tensor T5AttentionImpl::forward(const Tensor& hidden, const Tensor& memory, const Tensor& mask,
                                const Tensor& position_bias) {
  const Tensor query = split_heads(q_(hidden));  // [B, H, Q, d_kv]
  const Tensor key = split_heads(k_(memory));    // [B, H, K, d_kv]
  const Tensor value = split_heads(v_(memory));
  Tensor scores = torch::matmul(query, key.transpose(-2, -1)) + mask;
  if (position_bias.defined()) scores = scores + position_bias;
  // Masks are float32, and scores of 16 bits with them, in which softmax adds up.
  const Tensor weights = dropout_(torch::softmax(scores, -1).to(value.scalar_type()));
  const Tensor context = torch::matmul(weights, value).transpose(1, 2).flatten(2);
  return o_(context);
}

Tensor T5AttentionImpl::relative_bias(int64_t length) {
  const Tensor position = torch::arange(length);
  const Tensor relative_position = position.unsqueeze(0) - position.unsqueeze(1);
  const Tensor buckets = relative_position_bucket(
      relative_position, kind_ == AttentionKind::kEncoder, config_.relative_attention_num_buckets,
      config_.relative_attention_max_distance);
  return relative_attention_bias_(buckets).permute({2, 0, 1}).unsqueeze(0);
}

T5DenseImpl::T5DenseImpl(const T5Config& config) : dropout_(config.dropout_rate) {
  const auto widen = [&] {
    return projection(config.d_model, config.d_ff, inverse_root(config.d_model));
  };
  if (config.is_gated_act) {
    wi_0_ = register_module("wi_0", widen());
    wi_1_ = register_module("wi_1", widen());
  } else {
    wi_ = register_module("wi", widen());
  }
  wo_ = register_module("wo", projection(config.d_ff, config.d_model, inverse_root(config.d_ff)));
  register_module("dropout", dropout_);
}

Tensor T5DenseImpl::forward(const Tensor& hidden) {
  if (wi_) return wo_(dropout_(torch::relu(wi_(hidden))));
  return wo_(dropout_(torch::gelu(wi_0_(hidden), "tanh") * wi_1_(hidden)));
}

}  // namespace t5
