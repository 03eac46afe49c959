// api/model/shared_parts.cpp: see the header.
#include "api/model/shared_parts.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "api/model/model_placement.h"
#include "smp/distributed_model.h"

namespace smp {
namespace {

/// Returns the modules and parameters of `module`.
std::unordered_set<const void*> parts_of(const torch::nn::Module& module) {
  std::unordered_set<const void*> parts;
  for (const auto& part : module.modules()) parts.insert(part.get());
  for (const auto& parameter : module.parameters()) parts.insert(parameter.unsafeGetTensorImpl());
  return parts;
}

bool overlap(const std::unordered_set<const void*>& a, const std::unordered_set<const void*>& b) {
  return std::any_of(a.begin(), a.end(), [&](const void* part) { return b.count(part) != 0; });
}

}  // namespace

CommonModules common_modules(const ModelDescription& gone, const ModelDescription& living,
                             const PartitionPlan& plan) {
  const std::unordered_set<const RoutedBase*> before(gone.routed.begin(), gone.routed.end());
  CommonModules common;
  for (std::size_t i = 0; i < living.routed.size(); ++i) {
    auto* const module = living.routed[i];
    if (module == nullptr || before.count(module) == 0) continue;
    common.modules.push_back(module);
    common.state.push_back(kept_state(plan.rows()[i]));
  }
  return common;
}

bool share_parts(const DistributedModelBase& a, const DistributedModelBase& b) {
  return overlap(parts_of(a.base_module()), parts_of(b.base_module()));
}

std::vector<DistributedModelBase*> take_independent(std::vector<DistributedModelBase*>& models) {
  std::vector<DistributedModelBase*> taken;
  std::vector<DistributedModelBase*> left;
  std::unordered_set<const void*> seen;
  for (auto* model : models) {
    const auto parts = parts_of(model->base_module());
    (overlap(parts, seen) ? left : taken).push_back(model);
    seen.insert(parts.begin(), parts.end());
  }
  models = std::move(left);
  return taken;
}

}  // namespace smp
