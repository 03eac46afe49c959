// smp/nn/attention_core.h: what attention computes between its projections.
//
// B rows, H heads, K heads of keys and values, T queries, S keys, D elements of a head.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <ostream>

#include "smp/detail/export.h"
#include "smp/module.h"

namespace smp {
namespace nn {

/// softmax(q kᵀ / √D + mask) v with dropout of the weights, by LibTorch's
/// scaled_dot_product_attention, which makes no matrix of scores where its fast kernels take the
/// inputs. It has no parameters.
///
/// The library's attention layers have one each, as "core", so that what grows with the square of
/// the sequence can be computed again by itself (selective recomputation: Korthikanti et al. 2022,
/// arXiv 2205.05198, section 5): mark it, or set `checkpoint_modules = "AttentionCore"`
/// (docs/memory.md).
class SMP_API AttentionCoreImpl : public torch::nn::Module {
 public:
  /// @param dropout  the probability with which a weight of the attention is dropped in training
  /// @throws UsageError  it is not in [0, 1].
  explicit AttentionCoreImpl(double dropout = 0);

  /// Attends from each query to the keys.
  /// @param query      [B, H, T, D]
  /// @param key        [B, K, S, D]; K divides H, and heads i·H/K to (i+1)·H/K - 1 share key i
  /// @param value      [B, K, S, D]
  /// @param mask       broadcasting to [B, H, T, S]: boolean, true where query i may see key j, or
  ///                   numbers that are added to scores; undefined for none
  /// @param is_causal  whether query i sees keys 0 to i only; not together with a mask
  /// @return [B, H, T, D]
  /// @throws UsageError  shapes do not fit, or a mask is given to what is causal.
  torch::Tensor forward(const torch::Tensor& query, const torch::Tensor& key,
                        const torch::Tensor& value, const torch::Tensor& mask = {},
                        bool is_causal = false);

  void pretty_print(std::ostream& stream) const override;

  const double dropout;
};

/// Like AttentionCoreImpl, routed.
SMP_MODULE(AttentionCore);

}  // namespace nn
}  // namespace smp
