// tp/layers/distributed_attention_core.cpp: see the header.
#include "smp/tp/distributed_attention_core.h"

#include "base/check.h"
#include "nn/causal_attention.h"
#include "tp/group/own_dropout.h"

namespace smp::nn {

DistributedAttentionCoreImpl::DistributedAttentionCoreImpl(double probability)
    : dropout(probability) {
  SMP_REQUIRE(dropout >= 0 && dropout <= 1, "DistributedAttentionCore: dropout is ", dropout,
              ", must be in [0, 1]");
}

at::Tensor DistributedAttentionCoreImpl::forward(const at::Tensor& query, const at::Tensor& key,
                                                 const at::Tensor& value, const at::Tensor& mask,
                                                 bool is_causal) {
  const double dropped = is_training() ? dropout : 0;
  const tp::OwnNumbers numbers(dropped > 0 && !query.is_meta());
  return attention({query, key, value}, mask, dropped, is_causal);
}

void DistributedAttentionCoreImpl::pretty_print(std::ostream& stream) const {
  stream << "smp::nn::DistributedAttentionCore(dropout=" << dropout << ")";
}

}  // namespace smp::nn
