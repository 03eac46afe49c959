// nn/attention_core.cpp: see smp/nn/attention_core.h.
#include "smp/nn/attention_core.h"

#include "base/check.h"
#include "nn/causal_attention.h"

namespace smp::nn {

AttentionCoreImpl::AttentionCoreImpl(double probability) : dropout(probability) {
  SMP_REQUIRE(dropout >= 0 && dropout <= 1, "AttentionCore: dropout is ", dropout,
              ", must be in [0, 1]");
}

at::Tensor AttentionCoreImpl::forward(const at::Tensor& query, const at::Tensor& key,
                                      const at::Tensor& value, const at::Tensor& mask,
                                      bool is_causal) {
  return attention({query, key, value}, mask, is_training() ? dropout : 0.0, is_causal);
}

void AttentionCoreImpl::pretty_print(std::ostream& stream) const {
  stream << "smp::nn::AttentionCore(dropout=" << dropout << ")";
}

}  // namespace smp::nn
