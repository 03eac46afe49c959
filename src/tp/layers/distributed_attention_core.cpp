// tp/layers/distributed_attention_core.cpp: see the header.
#include "smp/tp/distributed_attention_core.h"

#include <ATen/ATen.h>

#include "base/check.h"
#include "nn/causal_attention.h"
#include "tp/group/own_dropout.h"

namespace smp::nn {
namespace {

/// Attention of no heads, by operators of which every derivative depends on every argument, as it
/// does where there are heads: the gradients that ranks with heads compute lead to exchanges, where
/// they wait for this one.
at::Tensor of_no_heads(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                       const at::Tensor& mask) {
  auto scores = at::matmul(query, key.transpose(-1, -2));
  if (mask.defined() && mask.is_floating_point()) scores = scores + mask;
  return at::matmul(scores.exp(), value);
}

}  // namespace

DistributedAttentionCoreImpl::DistributedAttentionCoreImpl(double probability)
    : dropout(probability) {
  SMP_REQUIRE(dropout >= 0 && dropout <= 1, "DistributedAttentionCore: dropout is ", dropout,
              ", must be in [0, 1]");
}

at::Tensor DistributedAttentionCoreImpl::forward(const at::Tensor& query, const at::Tensor& key,
                                                 const at::Tensor& value, const at::Tensor& mask,
                                                 bool is_causal,
                                                 const std::optional<double>& scale) {
  const double dropped = is_training() ? dropout : 0;
  const tp::OwnNumbers numbers(dropped > 0 && !query.is_meta());
  if (query.dim() == 4 && query.size(1) == 0) return of_no_heads(query, key, value, mask);
  return attention({query, key, value}, mask, dropped, is_causal, scale);
}

void DistributedAttentionCoreImpl::pretty_print(std::ostream& stream) const {
  stream << "smp::nn::DistributedAttentionCore(dropout=" << dropout << ")";
}

}  // namespace smp::nn
