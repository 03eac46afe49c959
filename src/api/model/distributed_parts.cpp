// api/model/distributed_parts.cpp: what of a model is spread over the ranks of a TP_GROUP.
#include <algorithm>

#include "smp/distributed_model.h"
#include "tp/slices/distributed_modules.h"
#include "tp/slices/sliced_parameters.h"

namespace smp {

std::vector<std::pair<std::string, const DistributedModule*>>
DistributedModelBase::distributed_modules() const {
  return tp::distributed_modules_of(base_module());
}

bool DistributedModelBase::is_distributed_parameter(const at::Tensor& parameter) const {
  return tp::SlicedParameters(base_module()).contain(parameter);
}

DistributedModelBase::NamedTensors DistributedModelBase::default_reducer_named_parameters() const {
  const tp::SlicedParameters slices(base_module());
  auto tensors = named_parameters();
  std::erase_if(tensors, [&](const auto& item) { return slices.contain(item.second); });
  return tensors;
}

DistributedModelBase::NamedTensors DistributedModelBase::scaled_batch_reducer_named_parameters()
    const {
  const tp::SlicedParameters slices(base_module());
  auto tensors = named_parameters();
  std::erase_if(tensors, [&](const auto& item) { return !slices.contain(item.second); });
  return tensors;
}

}  // namespace smp
