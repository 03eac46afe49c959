// smp/tp/distributed_attention_core.h: what attention computes between its projections, where each
// rank of a TP_GROUP has some of the heads.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <optional>
#include <ostream>

#include "smp/detail/export.h"
#include "smp/module.h"
#include "smp/nn/attention_core.h"

namespace smp {
namespace nn {

/// AttentionCore of the heads that a rank has: it sends nothing, and drops weights by numbers of
/// its own. The distributed attention layers have one each, as "core"; mark it, or set
/// `checkpoint_modules = "DistributedAttentionCore"`, to have it computed again.
class SMP_API DistributedAttentionCoreImpl : public torch::nn::Module {
 public:
  /// @throws UsageError  as AttentionCoreImpl
  explicit DistributedAttentionCoreImpl(double dropout = 0);

  /// Computes AttentionCoreImpl::forward() of these heads. Scores are multiplied by `scale`, and
  /// without one by 1 / sqrt(D).
  at::Tensor forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const at::Tensor& mask = {}, bool is_causal = false,
                     const std::optional<double>& scale = {});
  void pretty_print(std::ostream& stream) const override;

  const double dropout;
};

/// Like DistributedAttentionCoreImpl, routed.
SMP_MODULE(DistributedAttentionCore);

}  // namespace nn
}  // namespace smp
