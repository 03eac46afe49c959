// samples/models/llama.h: a Llama-shaped language model of the library's blocks. B rows, T tokens.
#pragma once

#include <smp/smp.h>
#include <torch/torch.h>

#include <optional>

namespace models {

namespace nn = smp::nn;
using torch::Tensor;

/// Sizes and kinds, under the names of Hugging Face's config.json where it has one.
struct LlamaConfig {
  int64_t vocab_size = 64;
  int64_t hidden_size = 64;
  int64_t intermediate_size = 176;
  int64_t num_hidden_layers = 6;
  int64_t num_attention_heads = 4;
  int64_t num_key_value_heads = 2;
  int64_t head_dim = 16;
  double rms_norm_eps = 1e-6;
  nn::RotaryEmbeddingOptions rope{16};  ///< its head_dim is set to the above
  bool tie_word_embeddings = false;
  std::optional<int64_t> sliding_window;  ///< Mistral
  bool qk_norm = false;                   ///< Qwen3
  bool attention_bias = false;            ///< of q, k and v: Qwen2
  bool norm_unit_offset = false;          ///< Gemma
  bool scale_embeddings = false;          ///< Gemma: by sqrt(hidden_size)
  nn::GateActivation activation = nn::GateActivation::kSilu;
  double initializer_range = 0.02;
  nn::OutputScale output_scale = nn::OutputScale::kTwoLayers;  ///< of o_proj and down_proj
};

/// The model without its head, as Hugging Face nests it.
class LlamaModelImpl : public torch::nn::Module {
 public:
  explicit LlamaModelImpl(const LlamaConfig& config);
  /// Returns what the head reads.
  /// @param tokens   [B, T]
  /// @param present  [B, T], 0 where a row is padding; undefined for none
  /// @return [B, T, hidden_size]
  Tensor forward(const Tensor& tokens, const Tensor& present = {});
  /// Returns the same of tokens [B, T] that follow those of earlier calls.
  Tensor decode(const Tensor& tokens, const nn::CachedTokens& place);
  /// Returns scores [B, T, vocab_size] against the table of the tokens.
  Tensor logits(const Tensor& hidden);

 private:
  Tensor embedded(const Tensor& tokens);

  const LlamaConfig config_;
  nn::Embedding embed_tokens_;
  nn::ModuleList layers_;
  nn::RMSNorm norm_;
};
SMP_MODULE(LlamaModel, logits, decode);

class LlamaImpl : public torch::nn::Module {
 public:
  explicit LlamaImpl(const LlamaConfig& config = {});
  /// Returns the mean loss of predicting each next one of `tokens` [B, T].
  Tensor forward(const Tensor& tokens);
  /// Returns scores [B, T, vocab_size] of what follows each; arguments as of LlamaModel.
  Tensor scores(const Tensor& tokens, const Tensor& present = {});
  /// Returns scores [B, vocab_size] of what follows the last of `tokens` [B, T], which themselves
  /// follow those of earlier calls (smp/text/generate.h).
  Tensor decode(const Tensor& tokens, const nn::CachedTokens& place);

 private:
  LlamaModel model_;
  nn::Linear lm_head_{nullptr};
};
SMP_MODULE(Llama, decode);

}  // namespace models
