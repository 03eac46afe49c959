// nn/causal_attention.h: attention of some heads to what comes before, whoever has the others.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace smp::nn {

/// Heads of queries [B, H, T, D], and of keys and values [B, K, T, D]; K divides H.
struct AttentionHeads {
  at::Tensor query, key, value;
};

/// Returns what says whom the tokens of `rows` see, broadcasting to [B, H, T, begin + T] and true
/// where query i may see key j; undefined if being causal says all, or a single token sees all.
/// @param rows    [B, T, ..], of which length and device count
/// @param tokens  [B, begin + T], 0 where a row is padding, which nobody but itself sees;
/// undefined:
///                none is
/// @param window  a token sees itself and this many tokens less one before it
/// @param begin   how many tokens come before those of `rows`, with keys that were kept
/// @throws UsageError  `tokens` has another length.
at::Tensor causal_mask_for(const at::Tensor& rows, const at::Tensor& tokens,
                           const std::optional<std::int64_t>& window, std::int64_t begin = 0);

/// Attends from each query to the keys, as AttentionCore says: [B, H, T, D].
/// @param dropout  of weights of the attention
/// @param scale    what scores are multiplied by; nothing: 1 / sqrt(D)
at::Tensor attention(const AttentionHeads& heads, const at::Tensor& mask, double dropout,
                     bool is_causal, std::optional<double> scale = {});

}  // namespace smp::nn
