// smp/tp/distributed_transformer.h: the blocks of a transformer over the ranks of a TP_GROUP
// (paper §5.3, App. F.1, I.3; Shoeybi et al., Megatron-LM, 2019).
//
// B rows of one rank's batch, S sequence, H hidden size, T tensor-parallel ranks, A attention
// heads, D attention head size, I intermediate size. Sizes in options are those of the whole layer.
//
// First products of a block are split along output channels, second ones along input channels. The
// paper reduces the sum on every rank; here it is reduced straight to the rank whose samples it
// belongs to, which is the half of that, and gathered by the next block, which is the other half:
//
//     [B, S, H] ─ all-gather ─► [T·B, S, H] ─ block/T ─► partial sums ─ reduce-scatter ─► [B, S, H]
//
// So between blocks no activation is kept twice; norms, dropout of the hidden state and residuals
// see one's own samples only. Forward sends (T-1)·B·S·H elements twice from each rank and block,
// backward as many. Dropout draws other masks on every rank.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "smp/module.h"
#include "smp/tp/distributed_module.h"

namespace smp {

struct AttentionLayerOptions {
  std::int64_t num_attention_heads = 32;  ///< a multiple of T
  std::int64_t attention_head_size = 32;
  std::int64_t hidden_size = 1024;
  double attention_dropout_prob = 0.1;
  double hidden_dropout_prob = 0.1;
  double layernorm_epsilon = 1e-5;
  double initializer_range = 0.02;         ///< deviation, with use_normal_initialization
  bool use_normal_initialization = false;  ///< else as torch::nn::Linear
  bool cross_attention = false;            ///< keys and values are of another sequence
  /// Longest sequence of a model in which positions see only those before; nothing: they see all.
  std::optional<std::int64_t> causal_mask_size = {};
  bool pre_layernorm = false;
  bool post_layernorm = true;  ///< one of the two, or both
};

struct TransformerOutputLayerOptions {
  std::int64_t hidden_size = 1024;
  std::int64_t intermediate_size = 4096;  ///< a multiple of T
  double hidden_dropout_prob = 0.1;
  std::string activation = "gelu";  ///< or "gelu_tanh", its approximation in GPT-2; or "relu"
  double layernorm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool use_normal_initialization = false;
  bool pre_layernorm = false;
  bool post_layernorm = true;
};

/// What goes through a stack of layers, and comes out of each with another `hidden`.
struct TransformerState {
  at::Tensor hidden;        ///< [B, S, H]
  at::Tensor mask;          ///< [B or 1, 1, 1, S], added to scores; undefined: none
  at::Tensor cross_states;  ///< [B, S', H], with cross-attention
  at::Tensor cross_mask;    ///< [B or 1, 1, 1, S']
};

namespace nn {

/// Multi-head attention with residual: x + dropout(W_o attention(norm(x))), then a norm; which of
/// the two norms there are is in the options. Rank j computes heads j·A/T to (j+1)·A/T - 1.
class SMP_API DistributedAttentionLayerImpl : public DistributedModule {
 public:
  /// @throws UsageError  heads cannot be divided by T, no norm is wanted, or no session runs.
  explicit DistributedAttentionLayerImpl(const AttentionLayerOptions& options);
  ~DistributedAttentionLayerImpl() override;

  /// @param hidden        [B, S, H]
  /// @param mask          [B or 1, 1, 1, S] (of the cross states: S'), added to scores; undefined:
  ///                      none, on all ranks alike
  /// @param cross_states  [B, S', H] with cross-attention, else undefined
  /// @return [B, S, H]
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor& mask,
                     const at::Tensor& cross_states);

  const AttentionLayerOptions options;

 private:
  struct Parts;
  at::Tensor attend(const at::Tensor& queries, const at::Tensor& source, const at::Tensor& mask);
  at::Tensor heads_of(const at::Tensor& channels) const;
  std::shared_ptr<Parts> parts_;
};

/// The block of two products with residual: x + dropout(W_2 act(W_1 norm(x))), then a norm.
class SMP_API DistributedTransformerOutputLayerImpl : public DistributedModule {
 public:
  /// @throws UsageError  intermediate_size cannot be divided by T, no norm is wanted, another
  ///                     activation than those named, or no session runs.
  explicit DistributedTransformerOutputLayerImpl(const TransformerOutputLayerOptions& options);
  ~DistributedTransformerOutputLayerImpl() override;

  /// @param hidden  [B, S, H]. @return [B, S, H]
  at::Tensor forward(const at::Tensor& hidden);

  const TransformerOutputLayerOptions options;

 private:
  struct Parts;
  std::shared_ptr<Parts> parts_;
};

SMP_MODULE(DistributedAttentionLayer);
SMP_MODULE(DistributedTransformerOutputLayer);

/// Self-attention, cross-attention if wanted, and the block of two products.
class SMP_API DistributedTransformerLayerImpl : public torch::nn::Module {
 public:
  /// `attention.cross_attention` adds the second of the three.
  DistributedTransformerLayerImpl(const AttentionLayerOptions& attention,
                                  const TransformerOutputLayerOptions& output);
  TransformerState forward(TransformerState state);

  DistributedAttentionLayer attention{nullptr};
  DistributedAttentionLayer cross_attention{nullptr};  ///< empty without
  DistributedTransformerOutputLayer output{nullptr};
};
SMP_MODULE(DistributedTransformerLayer);

}  // namespace nn
}  // namespace smp
