// samples/gpt/gpt.h: a GPT (Radford et al., 2019) whose layers are spread over the ranks of a
// TP_GROUP. B rows of one rank, T bytes, D wide, V different bytes.
#pragma once

#include <smp/hf.h>
#include <smp/smp.h>
#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpt {

namespace nn = smp::nn;
using torch::Tensor;

struct GptConfig {
  std::int64_t vocabulary = 256;
  std::int64_t length = 64;  ///< longest sequence
  std::int64_t width = 64;
  std::int64_t heads = 4;
  std::int64_t layers = 4;
  /// Whether embedding and head are spread over the ranks by bytes, so that no rank has whole
  /// scores; else they are whole on each.
  bool split_vocabulary = false;

  /// "demo"; "tiny"; "small", of a few million parameters; or "gpt2", of 163 million: the published
  /// one's 124 and a head of its own, which that one shares with its embedding.
  static GptConfig preset(const std::string& name);
  static std::vector<std::string> preset_names();

  smp::AttentionLayerOptions attention() const;
  smp::TransformerOutputLayerOptions output() const;
};

/// Weights start from N(0, this), biases from 0, as GPT-2's do.
inline constexpr double kDeviation = 0.02;

/// How names and shapes of this model follow from those of the published GPT-2.
inline smp::hf::NameMap published_names() {
  return smp::hf::NameMap::distributed(smp::hf::Family::kGpt2, "h.{}");
}

/// Mean cross-entropy in nats a byte. scores [B, T, V], next [B, T].
Tensor loss_of(const Tensor& scores, const Tensor& next);

/// Heads and inner channels of layers are spread; embeddings and head are whole on each rank, or
/// those of bytes are spread, too. Names, shapes and first values are the same.
class GptImpl : public torch::nn::Module {
 public:
  /// In a session, because that knows how many ranks there are.
  explicit GptImpl(const GptConfig& config);
  /// [B, T] int64 to scores [B, T, V] of what follows each.
  Tensor forward(const Tensor& tokens);
  /// loss_of() these scores and `next` [B, T].
  Tensor loss(const Tensor& tokens, const Tensor& next);

 private:
  Tensor hidden_of(const Tensor& tokens);

  nn::Embedding wte_{nullptr};
  nn::DistributedVocabulary split_wte_{nullptr};  // one of the two
  nn::Embedding wpe_{nullptr};
  nn::ModuleList h_{nullptr};
  nn::LayerNorm ln_f_{nullptr};
  nn::Linear lm_head_{nullptr};
  nn::DistributedVocabulary split_head_{nullptr};  // one of the two
};
SMP_MODULE(Gpt, loss);

}  // namespace gpt
