// smp/nn/grouped_query_attention.h: causal self-attention in which groups of heads share keys and
// values.
//
// B rows, T tokens, W width, H heads, K heads of keys and values, D elements of a head.
#pragma once

#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>

#include "smp/detail/export.h"
#include "smp/nn/attention_core.h"
#include "smp/nn/key_value_cache.h"
#include "smp/nn/linear.h"
#include "smp/nn/rms_norm.h"
#include "smp/nn/rotary_embedding.h"
#include "smp/state.h"

namespace smp {
namespace nn {

/// Options of GroupedQueryAttention.
struct GroupedQueryAttentionOptions {
  /// One head of keys and values for each head of queries, D = W / H.
  GroupedQueryAttentionOptions(std::int64_t width, std::int64_t heads)
      : width_(width),
        heads_(heads),
        kv_heads_(heads),
        rotary_(RotaryEmbeddingOptions(heads > 0 ? width / heads : 0)) {}

  /// W.
  TORCH_ARG(std::int64_t, width);
  /// H.
  TORCH_ARG(std::int64_t, heads);
  /// K, which divides H: heads i·H/K to (i+1)·H/K - 1 share keys and values i.
  TORCH_ARG(std::int64_t, kv_heads);
  /// How positions turn queries and keys; its `head_dim` is D.
  TORCH_ARG(RotaryEmbeddingOptions, rotary);
  /// Whether q_proj, k_proj and v_proj have biases (Qwen2).
  TORCH_ARG(bool, bias) = false;
  /// Whether o_proj has one.
  TORCH_ARG(bool, output_bias) = false;
  /// With a value: queries and keys pass norms over D with this eps before they are turned (Qwen3).
  TORCH_ARG(std::optional<double>, qk_norm_eps) = std::nullopt;
  /// With a value: a token sees itself and this many tokens less one before it (Mistral).
  TORCH_ARG(std::optional<std::int64_t>, window) = std::nullopt;
  /// The probability with which a weight of the attention is dropped in training.
  TORCH_ARG(double, dropout) = 0;
};

/// Causal self-attention with rotary positions, as in Llama, Qwen and Mistral (Ainslie et al. 2023,
/// arXiv 2305.13245). Its parameters have the names of Hugging Face's: q_proj [H·D, W], k_proj and
/// v_proj [K·D, W], o_proj [W, H·D], q_norm and k_norm [D].
///
/// A mask is made where it is used, and only if there is a
/// window or a key to leave out: kernels disagree on what a mask together with `is_causal` means.
class SMP_API GroupedQueryAttentionImpl : public torch::nn::Module {
 public:
  /// @throws UsageError  K does not divide H, or an option is out of range.
  explicit GroupedQueryAttentionImpl(const GroupedQueryAttentionOptions& options);

  /// Attends from each token to those before it and to itself.
  /// @param hidden     [B, T, W]
  /// @param positions  integers [T] or [B, T]; 0 to T-1 if undefined
  /// @param tokens     [B, T], 0 where a row is padding, which nobody but itself sees; undefined
  /// for
  ///                   none
  /// @return [B, T, W]
  torch::Tensor forward(const torch::Tensor& hidden, const torch::Tensor& positions = {},
                        const torch::Tensor& tokens = {});

  /// Attends from each token of the call to those before it, of earlier calls too, and to itself:
  /// what forward() of all of them returns for these. Its keys and values are kept for later calls,
  /// on this rank; positions follow from what is no padding.
  /// @param hidden  [B, T, W]
  /// @param tokens  where these stand
  /// @return [B, T, W]. @throws UsageError  as KeyValueCache::extended()
  torch::Tensor decode(const torch::Tensor& hidden, const CachedTokens& tokens);
  /// What decode() has kept.
  const KeyValueCache& cache() const noexcept { return *cache_; }

  void pretty_print(std::ostream& stream) const override;

  const GroupedQueryAttentionOptions options;
  Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr};
  RMSNorm q_norm{nullptr}, k_norm{nullptr};  ///< with `qk_norm_eps`
  AttentionCore core{nullptr};

 private:
  struct Heads {
    torch::Tensor query, key, value;  // [B, heads, tokens, D]
  };
  torch::Tensor split_heads(const torch::Tensor& projected, RMSNorm& norm) const;
  Heads heads_of(const torch::Tensor& hidden, const torch::Tensor& positions);
  torch::Tensor attended(const Heads& heads, const torch::Tensor& mask, bool is_causal);

  RotaryEmbedding rotary_;
  std::shared_ptr<KeyValueCache> cache_ = std::make_shared<KeyValueCache>();
};

}  // namespace nn

/// A cache is kept for each microbatch's rows, and nobody else reads it.
template <>
inline constexpr bool private_state_v<nn::GroupedQueryAttentionImpl> = true;

namespace nn {

/// Like GroupedQueryAttentionImpl, routed.
SMP_MODULE(GroupedQueryAttention, decode);

}  // namespace nn
}  // namespace smp
