// api/model/initial_values.cpp: see the header.
#include "api/model/initial_values.h"

#include <torch/nn/module.h>

#include "api/model/rank_agreement.h"
#include "api/rank/rank.h"
#include "dp/replica_values.h"
#include "tp/slices/sliced_parameters.h"

namespace smp {

InitialValues::InitialValues(const Rank& rank, torch::nn::Module& module)
    : rank_(rank), module_(module) {
  const auto parameters = module.parameters();
  const auto equal = compared(rank, parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (equal[i]) equal_.insert(parameters[i].unsafeGetTensorImpl());
  }
}

/// Treats slices of distributed modules apart, because they differ between the ranks that share
/// them.
void InitialValues::take(const std::vector<at::Tensor>& held) const {
  const tp::SlicedParameters slices(module_);
  std::vector<at::Tensor> whole, sliced;
  for (const auto& tensor : held) {
    if (equal_.count(tensor.unsafeGetTensorImpl()) != 0) continue;
    (slices.contain(tensor) ? sliced : whole).push_back(tensor);
  }
  const auto bytes = rank_.bucket_bytes();
  dp::take_values_of(0, rank_.groups().replicas(), whole, bytes);
  dp::take_values_of(0, rank_.groups().slice_replicas(), sliced, bytes);
}

}  // namespace smp
