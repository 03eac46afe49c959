// api/model/shared_parts.h: what models have in common.
#pragma once

#include <vector>

#include "api/model/describe_model.h"

namespace smp {

class DistributedModelBase;

/// Routed modules of `living` that `gone`, which may have ended, had too.
std::vector<RoutedBase*> common_modules(const ModelDescription& gone,
                                        const ModelDescription& living);

/// The first of `models`, and those that share neither modules nor parameters with those before
/// them, are taken out.
std::vector<DistributedModelBase*> take_independent(std::vector<DistributedModelBase*>& models);

}  // namespace smp
