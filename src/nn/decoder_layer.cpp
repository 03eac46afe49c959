// nn/decoder_layer.cpp: see smp/nn/decoder_layer.h.
#include "smp/nn/decoder_layer.h"

#include <ATen/ATen.h>

#include "base/check.h"

namespace smp::nn {

DecoderLayerImpl::DecoderLayerImpl(const DecoderLayerOptions& with)
    : options(with),
      input_layernorm(register_module("input_layernorm", RMSNorm(with.norm()))),
      post_attention_layernorm(register_module("post_attention_layernorm", RMSNorm(with.norm()))),
      self_attn(register_module("self_attn", GroupedQueryAttention(with.attention()))),
      mlp(register_module("mlp", GatedMlp(with.mlp()))) {
  SMP_REQUIRE(
      with.norm().width() == with.attention().width() && with.norm().width() == with.mlp().width(),
      "DecoderLayer: the widths of norm, attention and MLP are ", with.norm().width(), ", ",
      with.attention().width(), " and ", with.mlp().width(), ", and must be equal");
}

at::Tensor DecoderLayerImpl::forward(const at::Tensor& hidden, const at::Tensor& positions,
                                     const at::Tensor& tokens) {
  const auto attended = hidden + self_attn->forward(input_layernorm(hidden), positions, tokens);
  return attended + mlp(post_attention_layernorm(attended));
}

at::Tensor DecoderLayerImpl::decode(const at::Tensor& hidden, const CachedTokens& tokens) {
  const auto attended = hidden + self_attn->decode(input_layernorm(hidden), tokens);
  return attended + mlp(post_attention_layernorm(attended));
}

}  // namespace smp::nn
