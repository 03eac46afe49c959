// api/model/shared_parts.h: what models have in common.
#pragma once

#include <vector>

#include "api/model/describe_model.h"

namespace smp {

class DistributedModelBase;

/// Returns the routed modules of `living` that were also part of `gone`, which may have ended.
std::vector<RoutedBase*> common_modules(const ModelDescription& gone,
                                        const ModelDescription& living);

/// Takes out of `models`, and returns, the first one and all that share neither modules nor
/// parameters with those before them.
std::vector<DistributedModelBase*> take_independent(std::vector<DistributedModelBase*>& models);

}  // namespace smp
