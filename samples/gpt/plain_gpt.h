// samples/gpt/plain_gpt.h: the network of gpt.h in plain LibTorch, for one process: what the ranks
// are compared with. Names of parameters and values after the same seed are the same.
#pragma once

#include <torch/torch.h>

#include "gpt.h"

namespace gpt {

class PlainAttentionImpl : public torch::nn::Module {
 public:
  explicit PlainAttentionImpl(const GptConfig& config);
  /// [B, T, D] to [B, T, D]: causal, with the norm before and the residual.
  Tensor forward(const Tensor& hidden);

 private:
  Tensor heads_of(const Tensor& channels) const;

  const std::int64_t heads_;
  torch::nn::LayerNorm pre_norm_;
  torch::nn::Linear query_, key_, value_, dense_;
};
TORCH_MODULE(PlainAttention);

class PlainOutputImpl : public torch::nn::Module {
 public:
  explicit PlainOutputImpl(const GptConfig& config);
  Tensor forward(const Tensor& hidden);

 private:
  torch::nn::LayerNorm pre_norm_;
  torch::nn::Linear first_, second_;
};
TORCH_MODULE(PlainOutput);

class PlainLayerImpl : public torch::nn::Module {
 public:
  explicit PlainLayerImpl(const GptConfig& config);
  Tensor forward(const Tensor& hidden);

 private:
  PlainAttention attention_;
  PlainOutput output_;
};
TORCH_MODULE(PlainLayer);

class PlainGptImpl : public torch::nn::Module {
 public:
  explicit PlainGptImpl(const GptConfig& config);
  /// [B, T] int64 to scores [B, T, V].
  Tensor forward(const Tensor& tokens);

 private:
  torch::nn::Embedding wte_, wpe_;
  torch::nn::ModuleList h_;
  torch::nn::LayerNorm ln_f_;
  torch::nn::Linear lm_head_;
};
TORCH_MODULE(PlainGpt);

}  // namespace gpt
