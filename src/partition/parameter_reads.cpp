// partition/parameter_reads.cpp: by identity of the tensor.
#include "partition/parameter_reads.h"

#include <torch/nn/module.h>

namespace smp::partitioning {
namespace {

/// For each module the one whose execution it is part of.
std::vector<int> routed_ancestors(const TracedModel& model) {
  const auto& nodes = model.tree->nodes;
  std::vector<int> ancestors(nodes.size(), 0);
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    const bool routed = (*model.routed)[i] != nullptr;
    ancestors[i] = routed ? static_cast<int>(i) : ancestors[nodes[i].parent];
  }
  return ancestors;
}

}  // namespace

ParameterReads::ParameterReads(const std::vector<TracedModel>& models) : uses_(models.size()) {
  for (std::size_t m = 0; m < models.size(); ++m) {
    const auto& nodes = models[m].tree->nodes;
    const auto ancestors = routed_ancestors(models[m]);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const auto tensors = (*models[m].modules)[i]->named_parameters(/*recurse=*/false);
      for (const auto& own : nodes[i].parameters) {
        auto& parameter = parameters_[tensors[own.name].unsafeGetTensorImpl()];
        parameter.model = static_cast<int>(m);
        parameter.number = own.parameter;
        parameter.holders.insert(ancestors[i]);
      }
    }
  }
}

void ParameterReads::note(int model, int module, const at::Tensor& tensor) {
  const auto found = parameters_.find(tensor.unsafeGetTensorImpl());
  if (found == parameters_.end()) return;
  const Parameter& parameter = found->second;
  const int reader = model == parameter.model ? module : 0;
  if (parameter.holders.count(reader) == 0)
    uses_[parameter.model].insert({reader, parameter.number});
}

std::vector<simulate::WeightUse> ParameterReads::foreign_uses(int model) const {
  std::vector<simulate::WeightUse> uses;
  for (const auto& [module, parameter] : uses_[model]) uses.push_back({module, parameter});
  return uses;
}

}  // namespace smp::partitioning
