// samples/gpt/gpt.h: a GPT (Radford et al., 2019) whose layers are spread over the ranks of a
// TP_GROUP. B rows of one rank, T bytes, D wide, V different bytes.
#pragma once

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
  std::int64_t heads = 4;  ///< a multiple of the tensor-parallel degree
  std::int64_t layers = 4;

  /// "demo"; "tiny"; "small", of a few million parameters; or "gpt2", of 124 million.
  static GptConfig preset(const std::string& name);
  static std::vector<std::string> preset_names();

  smp::AttentionLayerOptions attention() const;
  smp::TransformerOutputLayerOptions output() const;
};

/// Weights start from N(0, this), biases from 0, as GPT-2's do.
inline constexpr double kDeviation = 0.02;

/// Embeddings and head are whole on each rank; heads and inner channels of layers are spread.
class GptImpl : public torch::nn::Module {
 public:
  /// In a session, because that knows how many ranks there are.
  explicit GptImpl(const GptConfig& config);
  /// [B, T] int64 to scores [B, T, V] of what follows each.
  Tensor forward(const Tensor& tokens);

 private:
  nn::Embedding wte_, wpe_;
  nn::ModuleList h_;
  nn::LayerNorm ln_f_;
  nn::Linear lm_head_;
};
SMP_MODULE(Gpt);

}  // namespace gpt
