// nn/grouped_query_attention.cpp: see smp/nn/grouped_query_attention.h.
#include "smp/nn/grouped_query_attention.h"

#include <ATen/ATen.h>

#include "base/check.h"

namespace smp::nn {
namespace {

void check_heads(const GroupedQueryAttentionOptions& options) {
  SMP_REQUIRE(options.width() > 0 && options.heads() > 0 && options.kv_heads() > 0,
              "GroupedQueryAttention: width ", options.width(), ", heads ", options.heads(),
              " and kv_heads ", options.kv_heads(), " must be at least 1");
  SMP_REQUIRE(options.heads() % options.kv_heads() == 0, "GroupedQueryAttention: ", options.heads(),
              " heads cannot be dealt to ", options.kv_heads(),
              " heads of keys and values; choose a kv_heads that divides them");
  SMP_REQUIRE(options.dropout() >= 0 && options.dropout() < 1, "GroupedQueryAttention: dropout is ",
              options.dropout(), ", must be in [0, 1)");
  SMP_REQUIRE(!options.window() || *options.window() > 0, "GroupedQueryAttention: window is ",
              options.window().value_or(0), ", must be at least 1; leave it out to see all");
}

Linear projection(std::int64_t inputs, std::int64_t outputs, bool bias) {
  return Linear(LinearOptions(inputs, outputs).bias(bias));
}

/// True where query i may see key j: [T, T].
at::Tensor causal_mask(std::int64_t length, std::optional<std::int64_t> window, at::Device device) {
  const auto position = at::arange(length, at::device(device).dtype(at::kLong));
  const auto distance = position.unsqueeze(1) - position;
  const auto causal = distance >= 0;
  return window ? causal.logical_and(distance < *window) : causal;
}

}  // namespace

GroupedQueryAttentionImpl::GroupedQueryAttentionImpl(const GroupedQueryAttentionOptions& with)
    : options(with), rotary_(nullptr) {
  check_heads(options);
  const auto size = options.rotary().head_dim();
  const auto inner = options.heads() * size, shared = options.kv_heads() * size;
  rotary_ = register_module("rotary", RotaryEmbedding(options.rotary()));
  q_proj = register_module("q_proj", projection(options.width(), inner, options.bias()));
  k_proj = register_module("k_proj", projection(options.width(), shared, options.bias()));
  v_proj = register_module("v_proj", projection(options.width(), shared, options.bias()));
  o_proj = register_module("o_proj", projection(inner, options.width(), options.output_bias()));
  if (!options.qk_norm_eps()) return;
  const auto norm = RMSNormOptions(size).eps(*options.qk_norm_eps());
  q_norm = register_module("q_norm", RMSNorm(norm));
  k_norm = register_module("k_norm", RMSNorm(norm));
}

void GroupedQueryAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "smp::nn::GroupedQueryAttention(" << options.width() << ", heads=" << options.heads()
         << ", kv_heads=" << options.kv_heads() << ")";
}

/// [B, T, heads·D] to [B, heads, T, D].
at::Tensor GroupedQueryAttentionImpl::split_heads(const at::Tensor& projected,
                                                  RMSNorm& norm) const {
  const auto heads = projected.unflatten(-1, {-1, options.rotary().head_dim()});
  return (norm ? norm(heads) : heads).transpose(1, 2);
}

/// What broadcasts to [B, H, T, T], or nothing if being causal says all.
at::Tensor GroupedQueryAttentionImpl::mask_for(const at::Tensor& hidden,
                                               const at::Tensor& tokens) const {
  const auto length = hidden.size(1);
  const bool narrow = options.window() && *options.window() < length;
  if (!narrow && !tokens.defined()) return {};
  const auto causal = causal_mask(length, options.window(), hidden.device());
  if (!tokens.defined()) return causal;
  SMP_REQUIRE(tokens.dim() == 2 && tokens.size(-1) == length, "GroupedQueryAttention: tokens are ",
              tokens.sizes(), ", expected [B, ", length, "], 0 where a row is padding");
  // Padding sees itself, as a softmax over nothing is not a number.
  const auto itself = at::eye(length, causal.options());
  return causal.logical_and(tokens.to(at::kBool).unsqueeze(1)).logical_or(itself).unsqueeze(1);
}

at::Tensor GroupedQueryAttentionImpl::forward(const at::Tensor& hidden, const at::Tensor& positions,
                                              const at::Tensor& tokens) {
  SMP_REQUIRE(hidden.dim() == 3 && hidden.size(-1) == options.width(),
              "GroupedQueryAttention: input is ", hidden.sizes(), ", expected [B, T, ",
              options.width(), "]");
  RMSNorm none{nullptr};
  const auto value = split_heads(v_proj(hidden), none);
  const auto turned = rotary_->forward(split_heads(q_proj(hidden), q_norm),
                                       split_heads(k_proj(hidden), k_norm), positions);
  const auto& query = std::get<0>(turned);
  const auto mask = mask_for(hidden, tokens);
  const auto group = options.heads() / options.kv_heads();
  // On CUDA a mask beside enable_gqa leaves LibTorch only the kernel that keeps all scores.
  const bool repeats = group > 1 && mask.defined() && hidden.is_cuda();
  const auto shared = [&](const at::Tensor& heads) {
    return repeats ? heads.repeat_interleave(group, 1) : heads;
  };
  const auto attended = at::scaled_dot_product_attention(
      query, shared(std::get<1>(turned)), shared(value),
      mask.defined() ? std::optional(mask) : std::nullopt, is_training() ? options.dropout() : 0.0,
      /*is_causal=*/!mask.defined(), std::nullopt,
      /*enable_gqa=*/group > 1 && !repeats);
  return o_proj(attended.transpose(1, 2).flatten(2));
}

}  // namespace smp::nn
