// api/model/shared_parts.h: what models have in common.
#pragma once

#include <vector>

#include "api/model/describe_model.h"
#include "server/modules/module_table.h"
#include "smp/plan.h"

namespace smp {

class DistributedModelBase;

/// Routed modules of a model, and what its plan says that they keep.
struct CommonModules {
  std::vector<RoutedBase*> modules;
  std::vector<server::KeptState> state;
};
/// Returns the routed modules of `living`, which is placed by `plan`, that were also part of
/// `gone`, which may have ended.
CommonModules common_modules(const ModelDescription& gone, const ModelDescription& living,
                             const PartitionPlan& plan);

/// Takes out of `models`, and returns, the first one and all that share neither modules nor
/// parameters with those before them.
std::vector<DistributedModelBase*> take_independent(std::vector<DistributedModelBase*>& models);

/// True if the models have a module or a parameter in common.
[[nodiscard]] bool share_parts(const DistributedModelBase& a, const DistributedModelBase& b);

}  // namespace smp
