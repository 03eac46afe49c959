// smp/nn/decoder_layer.h: one block of a Llama-shaped model.
#pragma once

#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <ostream>

#include "smp/detail/export.h"
#include "smp/nn/gated_mlp.h"
#include "smp/nn/grouped_query_attention.h"
#include "smp/nn/rms_norm.h"

namespace smp {
namespace nn {

/// Options of DecoderLayer. The three parts must have one width.
struct DecoderLayerOptions {
  DecoderLayerOptions(const GroupedQueryAttentionOptions& attention, const GatedMlpOptions& mlp,
                      const RMSNormOptions& norm)
      : attention_(attention), mlp_(mlp), norm_(norm) {}

  TORCH_ARG(GroupedQueryAttentionOptions, attention);
  TORCH_ARG(GatedMlpOptions, mlp);
  TORCH_ARG(RMSNormOptions, norm);
};

/// y = x + self_attn(input_layernorm(x)); y + mlp(post_attention_layernorm(y)): the block of Llama,
/// Mistral, Qwen and Gemma, with the names of Hugging Face's.
class SMP_API DecoderLayerImpl : public torch::nn::Module {
 public:
  /// @throws UsageError  the parts have different widths.
  explicit DecoderLayerImpl(const DecoderLayerOptions& options);

  /// Computes the block: [B, T, W] to [B, T, W]. Arguments are those of GroupedQueryAttention.
  torch::Tensor forward(const torch::Tensor& hidden, const torch::Tensor& positions = {},
                        const torch::Tensor& tokens = {});
  /// Computes the block for tokens that follow those of earlier calls, as
  /// GroupedQueryAttention::decode(): [B, T, W] to [B, T, W].
  torch::Tensor decode(const torch::Tensor& hidden, const CachedTokens& tokens);

  const DecoderLayerOptions options;
  RMSNorm input_layernorm, post_attention_layernorm;
  GroupedQueryAttention self_attn;
  GatedMlp mlp;
};
/// Like DecoderLayerImpl, routed.
SMP_MODULE(DecoderLayer, decode);

}  // namespace nn
}  // namespace smp
