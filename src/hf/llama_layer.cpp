// hf/llama_layer.cpp: sizes as options of the library's blocks.
#include "base/check.h"
#include "smp/hf.h"

namespace smp::hf {
namespace {

nn::GateActivation activation_of(const std::string& name) {
  if (name == "silu" || name == "swish") return nn::GateActivation::kSilu;
  if (name == "gelu") return nn::GateActivation::kGelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return nn::GateActivation::kGeluTanh;
  throw UnsupportedError(base::concat("config.json: hidden_act = \"", name,
                                      "\" is none of silu, gelu and gelu_pytorch_tanh"));
}

}  // namespace

nn::RMSNormOptions LlamaConfig::norm() const {
  return nn::RMSNormOptions(hidden_size).eps(rms_norm_eps).unit_offset(is_gemma());
}

nn::DecoderLayerOptions LlamaConfig::layer() const {
  auto rotary = rope;
  auto attention = nn::GroupedQueryAttentionOptions(hidden_size, num_attention_heads)
                       .kv_heads(kv_heads())
                       .rotary(rotary.head_dim(head_size()).max_positions(max_position_embeddings))
                       .bias(attention_bias || model_type == "qwen2")
                       .output_bias(attention_bias)
                       .window(sliding_window)
                       .dropout(attention_dropout);
  if (qk_norm()) attention.qk_norm_eps(rms_norm_eps);
  const auto mlp = nn::GatedMlpOptions(hidden_size, intermediate_size)
                       .activation(activation_of(hidden_act))
                       .bias(mlp_bias);
  return {attention, mlp, norm()};
}

}  // namespace smp::hf
