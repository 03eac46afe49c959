// smp/tp/distributed_grouped_query_attention.h: causal self-attention with shared keys and values
// over the ranks of a TP_GROUP.
//
// B rows of one rank's batch, S sequence, W width, H heads, K heads of keys and values, D elements
// of a head, T tensor-parallel ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "smp/module.h"
#include "smp/nn/grouped_query_attention.h"
#include "smp/tp/distributed_module.h"

namespace smp {
namespace tp {
enum class Keep : std::uint8_t;
}
namespace nn {

class DistributedDecoderLayerImpl;

/// An nn::GroupedQueryAttention with its heads dealt to the ranks: rank j computes heads j·c to
/// (j+1)·c - 1, c = ceil(H/T), for the samples of all. Queries, keys and values are one product. H
/// may be any number: heads that pad are zero, are not computed, get no gradient, and are in no
/// file. Parameters have the names of GroupedQueryAttention.
///
/// If T divides K (or K is H) each rank has the keys and values of its own heads. Else ranks whose
/// heads share keys compute those alike: T = 8, H = 8, K = 2 makes two groups of four ranks
/// (NxDT, 2024, Figure 3). "speed" then keeps k_proj and v_proj whole on every rank, which uses
/// some of their rows: n = most heads of keys that one rank needs. Their gradients, and those of
/// q_norm and k_norm, are of a rank's heads only; the sum over the DP_GROUP, taken as of any whole
/// parameter, makes them complete, and counts each once.
///
///     "speed"   x [B, S, W] ─ all-gather ─► [T·B, S, W] ─ q, k, v ─► [T·B, S, (c+2n)·D]
///               ─ heads ─► [T·B, S, c·D] ─ o ─► ─ reduce-scatter ─► [B, S, W]
///     "memory"  x [T·B, S, W/T] ─ q, k, v ─► partial sums ─ reduce-scatter ─► [T·B, S, (c+2n)·D]
///               ─ heads ─► [T·B, S, c·D] ─ o ─► ─ reduce-scatter ─► [T·B, S, W/T]
///
/// Elements that each rank sends in forward; in backward as many:
///
///     "speed"   2·(T-1)·B·S·W
///     "memory"  (T-1)·B·S·(T·(c+2n)·D + W), and alone 2·(T-1)/T·B·S·W at both ends
///
/// Positions and tokens that differ by row are gathered in addition, whole numbers.
class SMP_API DistributedGroupedQueryAttentionImpl : public DistributedModule {
 public:
  /// Makes this rank's slices of a new layer, which starts from the values of
  /// nn::GroupedQueryAttention after the same torch::manual_seed.
  /// @param options   of the whole layer
  /// @param optimize  "speed", "memory" or "sequence"; empty: as the setting
  /// @throws UsageError  as nn::GroupedQueryAttention; "memory" cannot divide the width by T, or no
  ///                     session runs.
  explicit DistributedGroupedQueryAttentionImpl(const GroupedQueryAttentionOptions& options,
                                                const std::string& optimize = {});
  /// Stands in for `original`, whose parameters become slices.
  explicit DistributedGroupedQueryAttentionImpl(GroupedQueryAttentionImpl& original);
  ~DistributedGroupedQueryAttentionImpl() override;
  /// Returns why `original` cannot be spread over `ranks` ranks, or an empty text if it can.
  static std::string obstacle(const GroupedQueryAttentionImpl& original, int ranks);

  /// Attends from each token of this rank's batch to those before it and to itself.
  /// @param hidden     [B, S, W]
  /// @param positions  integers [S] or [B, S]; 0 to S-1 if undefined
  /// @param tokens     [B, S], 0 where a row is padding; undefined for none, on all ranks alike
  /// @return [B, S, W]
  /// @throws UsageError  shapes do not fit.
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor& positions = {},
                     const at::Tensor& tokens = {});
  /// Does the same between layers of layout "memory": [T·B, S, W/T] -> [T·B, S, W/T].
  /// @param slices  of the hidden states of all ranks
  /// @param positions, tokens  of the samples of all ranks
  /// @throws UsageError  the layout is "speed", or T is 1.
  at::Tensor forward_slices(const at::Tensor& slices, const at::Tensor& positions = {},
                            const at::Tensor& tokens = {});
  void pretty_print(std::ostream& stream) const override;

  const GroupedQueryAttentionOptions options;

 private:
  friend class DistributedDecoderLayerImpl;
  struct Parts;
  DistributedGroupedQueryAttentionImpl(const GroupedQueryAttentionImpl& whole,
                                       const std::string& optimize, tp::Keep keep);
  struct Call;
  at::Tensor block(const Call& call);
  at::Tensor of_parts(const at::Tensor& part, std::int64_t length, const at::Tensor& positions,
                      const at::Tensor& tokens);
  at::Tensor attend(const std::vector<at::Tensor>& channels, const at::Tensor& positions,
                    const at::Tensor& tokens);
  std::shared_ptr<Parts> parts_;
};

/// Like DistributedGroupedQueryAttentionImpl, routed.
SMP_MODULE(DistributedGroupedQueryAttention, forward_slices);

}  // namespace nn
}  // namespace smp
