// nn/causal_attention.cpp: see the header.
#include "nn/causal_attention.h"

#include <ATen/ATen.h>

#include "base/check.h"

namespace smp::nn {
namespace {

/// True where the query at `begin` + i may see key j: [T, begin + T].
at::Tensor causal_mask(std::int64_t begin, std::int64_t tokens, std::optional<std::int64_t> window,
                       at::Device device) {
  const auto position = at::arange(begin + tokens, at::device(device).dtype(at::kLong));
  const auto distance = position.narrow(0, begin, tokens).unsqueeze(1) - position;
  const auto causal = distance >= 0;
  return window ? causal.logical_and(distance < *window) : causal;
}

void check_heads(const AttentionHeads& heads) {
  const auto& [query, key, value] = heads;
  const bool fit = query.dim() == 4 && key.dim() == 4 && value.dim() == 4 &&
                   query.size(-1) == key.size(-1) && key.size(1) == value.size(1) &&
                   key.size(2) == value.size(2) && key.size(1) > 0 &&
                   query.size(1) % key.size(1) == 0;
  SMP_REQUIRE(fit, "attention: queries are ", query.sizes(), ", keys ", key.sizes(), ", values ",
              value.sizes(),
              "; expected [B, H, T, D], [B, K, S, D] and the same, where K divides H");
}

}  // namespace

at::Tensor causal_mask_for(const at::Tensor& rows, const at::Tensor& tokens,
                           const std::optional<std::int64_t>& window, std::int64_t begin) {
  const auto count = rows.size(1), length = begin + count;
  const bool narrow = window && *window < length;
  const bool all_are_seen = begin == 0 || count == 1;  // but later ones
  if (!narrow && !tokens.defined() && all_are_seen) return {};
  const auto causal = causal_mask(begin, count, window, rows.device());
  if (!tokens.defined()) return causal;
  SMP_REQUIRE(tokens.dim() == 2 && tokens.size(-1) == length, "GroupedQueryAttention: tokens are ",
              tokens.sizes(), ", expected [B, ", length, "], 0 where a row is padding");
  // Padding sees itself, as a softmax over nothing is not a number.
  const auto itself = at::eye(length, causal.options()).narrow(0, begin, count);
  return causal.logical_and(tokens.to(at::kBool).unsqueeze(1)).logical_or(itself).unsqueeze(1);
}

at::Tensor attention(const AttentionHeads& heads, const at::Tensor& mask, double dropout,
                     bool is_causal, std::optional<double> scale) {
  check_heads(heads);
  SMP_REQUIRE(!is_causal || !mask.defined(),
              "attention: is_causal together with a mask, of which LibTorch's kernels make "
              "different things; let the mask alone say whom a query sees");
  const auto& query = heads.query;
  const auto group = query.size(1) / heads.key.size(1);
  const auto given = mask.defined() ? std::optional(mask) : std::nullopt;
  // LibTorch's fast kernel on CPUs gives a mask no gradient, without a word.
  if (mask.defined() && mask.requires_grad()) {
    return std::get<0>(at::_scaled_dot_product_attention_math(
        query, heads.key, heads.value, given, dropout, is_causal, std::nullopt, scale, group > 1));
  }
  // On CUDA a mask beside enable_gqa leaves LibTorch only the kernel that keeps all scores.
  const bool repeats = group > 1 && mask.defined() && query.is_cuda();
  const auto shared = [&](const at::Tensor& of_group) {
    return repeats ? of_group.repeat_interleave(group, 1) : of_group;
  };
  return at::scaled_dot_product_attention(query, shared(heads.key), shared(heads.value), given,
                                          dropout, is_causal, scale,
                                          /*enable_gqa=*/group > 1 && !repeats);
}

}  // namespace smp::nn
