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

at::Tensor causal_attention(const AttentionHeads& heads, const at::Tensor& mask, double dropout,
                            bool is_causal) {
  const auto& query = heads.query;
  const auto group = query.size(1) / heads.key.size(1);
  // On CUDA a mask beside enable_gqa leaves LibTorch only the kernel that keeps all scores.
  const bool repeats = group > 1 && mask.defined() && query.is_cuda();
  const auto shared = [&](const at::Tensor& of_group) {
    return repeats ? of_group.repeat_interleave(group, 1) : of_group;
  };
  return at::scaled_dot_product_attention(query, shared(heads.key), shared(heads.value),
                                          mask.defined() ? std::optional(mask) : std::nullopt,
                                          dropout, is_causal && !mask.defined(), std::nullopt,
                                          /*enable_gqa=*/group > 1 && !repeats);
}

}  // namespace smp::nn
