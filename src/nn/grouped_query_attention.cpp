// nn/grouped_query_attention.cpp: see smp/nn/grouped_query_attention.h.
#include "smp/nn/grouped_query_attention.h"

#include <ATen/ATen.h>

#include <tuple>

#include "base/check.h"
#include "nn/causal_attention.h"

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

/// What `place` says of the first `length` tokens of each row.
at::Tensor present_of(const CachedTokens& place, std::int64_t length) {
  if (!place.present.defined()) return {};
  SMP_REQUIRE(place.present.dim() == 2 && place.present.size(1) >= length,
              "GroupedQueryAttention: CachedTokens::present is ", place.present.sizes(),
              ", expected [B, ", length, " or more]");
  return place.present.narrow(1, 0, length);
}

/// The number of each token from `begin` on among those of its row that are no padding: [T], or
/// [B, T] with `present` [B, begin + T].
at::Tensor positions_of(std::int64_t begin, std::int64_t tokens, const at::Tensor& present,
                        at::Device device) {
  if (!present.defined()) {
    return at::arange(begin, begin + tokens, at::device(device).dtype(at::kLong));
  }
  const auto numbers = present.to(at::kBool).to(at::kLong).cumsum(1) - 1;
  return numbers.clamp_min(0).narrow(1, begin, tokens);
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
  if (options.qk_norm_eps()) {
    const auto norm = RMSNormOptions(size).eps(*options.qk_norm_eps());
    q_norm = register_module("q_norm", RMSNorm(norm));
    k_norm = register_module("k_norm", RMSNorm(norm));
  }
  core = register_module("core", AttentionCore(options.dropout()));
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

GroupedQueryAttentionImpl::Heads GroupedQueryAttentionImpl::heads_of(const at::Tensor& hidden,
                                                                     const at::Tensor& positions) {
  SMP_REQUIRE(hidden.dim() == 3 && hidden.size(-1) == options.width(),
              "GroupedQueryAttention: input is ", hidden.sizes(), ", expected [B, T, ",
              options.width(), "]");
  RMSNorm none{nullptr};
  const auto value = split_heads(v_proj(hidden), none);
  const auto turned = rotary_->forward(split_heads(q_proj(hidden), q_norm),
                                       split_heads(k_proj(hidden), k_norm), positions);
  return {std::get<0>(turned), std::get<1>(turned), value};
}

at::Tensor GroupedQueryAttentionImpl::attended(const Heads& heads, const at::Tensor& mask,
                                               bool is_causal) {
  const auto mixed = core(heads.query, heads.key, heads.value, mask, is_causal && !mask.defined());
  return o_proj(mixed.transpose(1, 2).flatten(2));
}

at::Tensor GroupedQueryAttentionImpl::forward(const at::Tensor& hidden, const at::Tensor& positions,
                                              const at::Tensor& tokens) {
  const auto heads = heads_of(hidden, positions);
  return attended(heads, causal_mask_for(hidden, tokens, options.window()), /*is_causal=*/true);
}

at::Tensor GroupedQueryAttentionImpl::decode(const at::Tensor& hidden, const CachedTokens& tokens) {
  const auto begin = tokens.begin, count = hidden.size(1);
  const auto present = present_of(tokens, begin + count);
  auto heads = heads_of(hidden, positions_of(begin, count, present, hidden.device()));
  std::tie(heads.key, heads.value) = cache_->extended(tokens, heads.key, heads.value);
  const auto mask = causal_mask_for(hidden, present, options.window(), begin);
  // A single token comes after all that are kept.
  return attended(heads, mask, /*is_causal=*/begin == 0);
}

}  // namespace smp::nn
