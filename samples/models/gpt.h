// samples/models/gpt.h: a small decoder-only transformer. B rows, T tokens, D wide.
#pragma once

#include <smp/hf.h>
#include <smp/smp.h>
#include <torch/torch.h>

namespace models {

namespace nn = smp::nn;
using torch::Tensor;

struct GptConfig {
  int64_t vocabulary = 64;
  int64_t length = 32;
  int64_t width = 64;
  int64_t heads = 4;
  int64_t layers = 6;
  bool tied = false;  ///< the scores reuse the embedding table, as in GPT-2
};

class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const GptConfig& config);
  /// Causal self-attention, [B, T, D] to [B, T, D].
  Tensor forward(const Tensor& x);

 private:
  int64_t heads_;
  nn::Linear qkv_, out_;
};
SMP_MODULE(Attention);

class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const GptConfig& config);
  Tensor forward(const Tensor& x);

 private:
  nn::LayerNorm norm1_, norm2_;
  Attention attention_;
  nn::Linear up_, down_;
};
SMP_MODULE(Block);

/// Embeddings and blocks, without the head, as GPT-2 nests them.
class TransformerImpl : public torch::nn::Module {
 public:
  explicit TransformerImpl(const GptConfig& config);
  /// [B, T] tokens to [B, T, D].
  Tensor forward(const Tensor& tokens);
  /// [B, T, D] to scores [B, T, vocabulary] against the table of the tokens.
  Tensor logits(const Tensor& hidden);

 private:
  nn::Embedding wte_, wpe_;
  nn::ModuleList h_;
  nn::LayerNorm ln_f_;
};
SMP_MODULE(Transformer, logits);

class GptImpl : public torch::nn::Module {
 public:
  explicit GptImpl(const GptConfig& config = {});
  /// [B, T] tokens to the mean loss of predicting each next one.
  Tensor forward(const Tensor& tokens);
  /// [B, T] tokens to scores [B, T, vocabulary] of what follows each.
  Tensor scores(const Tensor& tokens);

 private:
  Transformer transformer_;
  nn::Linear lm_head_{nullptr};
};
SMP_MODULE(Gpt);

/// How names and shapes of this model follow from those of the published GPT-2.
smp::hf::NameMap published_names();

/// Sequences that count in steps of their own, modulo the vocabulary: [rows, T].
Tensor draw_sequences(int64_t rows, const GptConfig& config = {});

}  // namespace models
