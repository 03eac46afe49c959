// smp/tp/distributed_transformer.h: the blocks of a transformer over the ranks of a TP_GROUP
// (paper §5.3, App. F, I.3; Shoeybi et al., Megatron-LM, 2019).
//
// B rows of one rank's batch, S sequence, H hidden size, T tensor-parallel ranks, A attention
// heads, G heads of keys and values, D attention head size, I intermediate size. Sizes in options
// are those of the whole layer.
//
// Option `optimize`, or the setting of that name, chooses among three layouts; parameters have the
// same names, values and, in files, shapes in all.
//
// "speed" (App. F.1): first products of a block are split along output channels, second ones along
// input channels. The paper reduces the sum on every rank; here it is reduced straight to the rank
// whose samples it belongs to, which is the half of that, and gathered by the next block, which is
// the other half:
//
//     [B, S, H] ─ all-gather ─► [T·B, S, H] ─ block/T ─► partial sums ─ reduce-scatter ─► [B, S, H]
//
// Norms, dropout of the hidden state and residuals see one's own samples. Forward sends
// (T-1)·B·S·H elements twice from each rank and block, backward as many.
//
// "memory" (App. F.2): all products are split along input channels, and the sum of each is cut
// along its channels, so that no activation is twice in the group. Between layers every rank has a
// slice of the hidden size of all samples; the norms exchange two moments a row.
//
//     [T·B, S, H/T] ─ product ─► sums [T·B, S, C] ─ reduce-scatter ─► [T·B, S, C/T] ─ product ─►
//     sums [T·B, S, H] ─ reduce-scatter ─► [T·B, S, H/T]
//
// Forward sends (T-1)·B·S·((A + 2·G)·D + 2·H + I) elements from each rank and layer in four
// reduce-scatters, backward as many in four all-gathers; and 4·(T-1)·B·S doubles for each norm in
// an all-reduce, forward and backward (of that in backward the paper does not speak). A layer that
// is called with whole samples, as all are outside of DistributedTransformer, adds an all-to-all
// before and after, of (T-1)/T·B·S·H elements each.
//
// "sequence", of a batch that all ranks have: products are cut as with "speed", and between blocks
// a rank has its positions (docs/layers.md, tp/slices/sequence_parts.h).
//
//     [N, S/T, H] ─ all-gather ─► [N, S, H] ─ block/T ─► sums ─ reduce-scatter ─► [N, S/T, H]
//
// Dropout draws other masks on every rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "smp/module.h"
#include "smp/nn/rotary_embedding.h"
#include "smp/tp/distributed_module.h"
#include "smp/tp/relative_positions.h"

namespace smp {

/// The sizes of a layer of attention with its residual sum, and how it starts and computes. Names
/// are those of torch's Python counterparts.
struct AttentionLayerOptions {
  /// May be any number: ranks get ceil(A/T) each, and the surplus heads of the last ones are zeros.
  std::int64_t num_attention_heads = 32;
  std::int64_t attention_head_size = 32;
  std::int64_t hidden_size = 1024;
  double attention_dropout_prob = 0.1;
  double hidden_dropout_prob = 0.1;
  double layernorm_epsilon = 1e-5;
  double initializer_range = 0.02;         ///< deviation, with use_normal_initialization
  bool use_normal_initialization = false;  ///< else as torch::nn::Linear
  bool cross_attention = false;            ///< keys and values are of another sequence
  /// Length of the longest sequence, if positions attend to no later ones (a causal model);
  /// nothing: positions attend to all.
  std::optional<std::int64_t> causal_mask_size = {};
  bool pre_layernorm = false;
  bool post_layernorm = true;  ///< one of the two, or both
  std::string norm = "layer";  ///< or "rms", as nn::RMSNorm
  bool bias = true;            ///< of the products that make queries, keys and values
  bool output_bias = true;     ///< of the product after attention
  /// What scores are multiplied by; nothing: 1 / sqrt(D). T5 has 1.
  std::optional<double> attention_scale = {};
  /// With a value, self-attention turns queries and keys by their positions; its head_dim is D.
  std::optional<nn::RotaryEmbeddingOptions> rotary = {};
  /// With a value, self-attention adds numbers that it learns of distances, for each head. Of a
  /// stack the first layer has the table, and gives the others what it reads there.
  std::optional<RelativePositionOptions> relative_positions = {};
  /// With a value, scores of self-attention fall with the distance, by slopes of which this is the
  /// largest exponent (Press et al., ALiBi, 2022; the original's default is 8).
  std::optional<double> alibi_bias_max = {};
  /// Sums and norms between blocks are made in float32 where a layer has 16 bits, and its hidden
  /// state is float32 from the first sum on.
  bool fp32_residual_addition = false;
  /// G, the number of heads of keys and values, each of which A/G heads of queries share (Ainslie
  /// et al., GQA, 2023). Nothing: as many as heads. If T does not divide G, and G is not A, "speed"
  /// keeps the weights of keys and values whole on every rank, which computes those heads that it
  /// needs.
  std::optional<std::int64_t> num_key_value_heads = {};
  std::string optimize = {};  ///< "speed", "memory" or "sequence"; empty: as the setting
};

/// The sizes of a layer of two linear maps with its residual sum, and how it starts and computes;
/// members mean what those of AttentionLayerOptions do.
struct TransformerOutputLayerOptions {
  std::int64_t hidden_size = 1024;
  std::int64_t intermediate_size = 4096;  ///< a multiple of T
  double hidden_dropout_prob = 0.1;
  /// Or "gelu_tanh", its approximation in GPT-2, or "relu"; with a gate beside the first product
  /// "swiglu", "geglu", "geglu_tanh" or "reglu".
  std::string activation = "gelu";
  double layernorm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool use_normal_initialization = false;
  bool pre_layernorm = false;
  bool post_layernorm = true;
  std::string norm = "layer";
  bool bias = true;  ///< of all products
  bool fp32_residual_addition = false;
  std::string optimize = {};  ///< "speed", "memory" or "sequence"; empty: as the setting
};

/// The values that go through a stack of layers; each layer returns them with another `hidden`.
struct TransformerState {
  at::Tensor hidden = {};        ///< [B, S, H]
  at::Tensor mask = {};          ///< [B or 1, 1, 1, S], added to scores; undefined: none
  at::Tensor cross_states = {};  ///< [B, S', H], with cross-attention
  at::Tensor cross_mask = {};    ///< [B or 1, 1, 1, S']
  /// True between layers of layout "memory": hidden and cross states are slices [T·B, S, H/T] of
  /// the samples of all ranks, and masks are those of all. (T·B stands for the rows of the one
  /// batch if it is prescaled.)
  bool sliced = false;
  at::Tensor positions = {};  ///< integers [B or 1, S] or [S], with rotary; undefined: 0 to S - 1
  /// What relative positions add to the scores of this rank's heads: [1, heads, S, S]. The first
  /// layer of a stack writes it.
  at::Tensor position_bias = {};
};

namespace nn {

/// Multi-head attention with residual: x + dropout(W_o attention(norm(x))), then a norm; which of
/// the two norms there are, of which kind, and how positions count is in the options. With c =
/// ceil(A/T), rank j computes heads j·c to (j+1)·c - 1. A head that pads is zero, gets no gradient,
/// and is in no file.
class SMP_API DistributedAttentionLayerImpl : public DistributedModule {
 public:
  /// Makes this rank's slices of a new layer.
  /// @throws UsageError  heads are no multiple of those of keys, "memory" cannot divide the hidden
  ///                     size by T, no norm is wanted, `norm` or `optimize` is unknown, positions
  ///                     with cross-attention or of several kinds, or no session runs.
  explicit DistributedAttentionLayerImpl(const AttentionLayerOptions& options);
  ~DistributedAttentionLayerImpl() override;

  /// Computes the layer for this rank's batch.
  /// @param hidden        [B, S, H]
  /// @param mask          [B or 1, 1, 1, S] (of the cross states: S'), added to scores; undefined:
  ///                      none, on all ranks alike
  /// @param cross_states  [B, S', H] with cross-attention, else undefined
  /// @param positions     as TransformerState::positions
  /// @param biases        as TransformerState::position_bias; undefined: the layer's own, if it has
  ///                      relative positions
  /// @return [B, S, H]
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor& mask,
                     const at::Tensor& cross_states, const at::Tensor& positions = {},
                     const at::Tensor& biases = {});
  /// Does the same between layers of layout "memory".
  /// @param hidden        [T·B, S, H/T], a slice of the samples of all ranks
  /// @param mask          of all of them: [T·B or 1, 1, 1, S]
  /// @param cross_states  [T·B, S', H/T] with cross-attention, else undefined
  /// @param positions     of all of them: [T·B or 1, S] or [S]
  /// @param biases        as forward() has it
  /// @return [T·B, S, H/T]. @throws UsageError  the layout is "speed", or T is 1.
  at::Tensor forward_slices(const at::Tensor& hidden, const at::Tensor& mask,
                            const at::Tensor& cross_states, const at::Tensor& positions = {},
                            const at::Tensor& biases = {});
  /// Does the same between layers of layout "sequence", of this rank's positions, [N, ceil(S/T),
  /// H], of the batch of N rows that all ranks have; all else is as forward() has it.
  /// @return [N, ceil(S/T), H]. @throws UsageError  the layout is another one.
  at::Tensor forward_part(const at::Tensor& part, std::int64_t length, const at::Tensor& mask,
                          const at::Tensor& cross_states, const at::Tensor& positions,
                          const at::Tensor& biases);
  /// Returns what relative positions add to the scores of this rank's heads, in a sequence of
  /// `length`: [1, heads, length, length]. @throws UsageError  the layer has none.
  at::Tensor position_bias(std::int64_t length);

  const AttentionLayerOptions options;

 private:
  struct Parts;
  struct Call;
  void require_sources(const Call& call, std::int64_t width) const;
  at::Tensor block(const Call& call);
  std::vector<at::Tensor> projected(const Call& call);
  at::Tensor attend(const std::vector<at::Tensor>& channels, const Call& call);
  at::Tensor added_to_scores(const at::Tensor& queries, const at::Tensor& keys, const Call& call);
  at::Tensor heads_of(const at::Tensor& channels) const;
  at::Tensor for_own_heads(const at::Tensor& keys) const;
  at::Tensor biases_of(const at::Tensor& queries, const at::Tensor& given);
  std::shared_ptr<Parts> parts_;
};

/// The block of two products with residual: x + dropout(W_2 act(W_1 norm(x))), then a norm.
class SMP_API DistributedTransformerOutputLayerImpl : public DistributedModule {
 public:
  /// Makes this rank's slices of a new layer.
  /// @throws UsageError  intermediate_size, or with "memory" hidden_size, cannot be divided by T;
  ///                     no norm is wanted; another activation or layout than those named; no
  ///                     session runs.
  explicit DistributedTransformerOutputLayerImpl(const TransformerOutputLayerOptions& options);
  ~DistributedTransformerOutputLayerImpl() override;

  /// Computes the block for this rank's batch.
  /// @param hidden  [B, S, H]
  /// @return [B, S, H]
  at::Tensor forward(const at::Tensor& hidden);
  /// Does the same between layers of layout "memory": [T·B, S, H/T] -> [T·B, S, H/T].
  /// @throws UsageError  the layout is "speed", or T is 1.
  at::Tensor forward_slices(const at::Tensor& hidden);
  /// Does the same between layers of layout "sequence": [N, ceil(S/T), H] -> [N, ceil(S/T), H].
  /// @throws UsageError  the layout is another one.
  at::Tensor forward_part(const at::Tensor& part, std::int64_t length);

  const TransformerOutputLayerOptions options;

 private:
  struct Parts;
  struct Call;
  at::Tensor block(const Call& call);
  std::shared_ptr<Parts> parts_;
};

SMP_MODULE(DistributedAttentionLayer, forward_slices, forward_part, position_bias);
SMP_MODULE(DistributedTransformerOutputLayer, forward_slices, forward_part);

/// Self-attention, cross-attention if wanted, and the block of two products. A state that comes
/// sliced leaves sliced.
class SMP_API DistributedTransformerLayerImpl : public torch::nn::Module {
 public:
  /// Makes the parts; `attention.cross_attention` adds cross-attention.
  /// @throws UsageError  as the parts, or they have different layouts.
  DistributedTransformerLayerImpl(const AttentionLayerOptions& attention,
                                  const TransformerOutputLayerOptions& output);
  TransformerState forward(TransformerState state);

  DistributedAttentionLayer attention{nullptr};
  DistributedAttentionLayer cross_attention{nullptr};  ///< empty without
  DistributedTransformerOutputLayer output{nullptr};

 private:
  at::Tensor run_slices(const TransformerState& state);
  at::Tensor run_parts(const TransformerState& state);
  bool slices_ = false;  // layout "memory"
  bool parts_ = false;   // layout "sequence"
};
SMP_MODULE(DistributedTransformerLayer);

/// Layers "layer0", "layer1" .. in a row. With "memory" samples are exchanged before the first and
/// after the last one only.
class SMP_API DistributedTransformerImpl : public torch::nn::Module {
 public:
  /// Makes the layers. @throws UsageError  as the layers, or num_layers is less than 1.
  DistributedTransformerImpl(const AttentionLayerOptions& attention,
                             const TransformerOutputLayerOptions& output, std::int64_t num_layers);
  TransformerState forward(const TransformerState& state);

  std::vector<DistributedTransformerLayer> layers;

 private:
  bool slices_ = false;
};
SMP_MODULE(DistributedTransformer);

}  // namespace nn
}  // namespace smp
