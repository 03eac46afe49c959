// api/model/checkpoint_modules.h: modules whose activations are computed again (the key
// checkpoint_modules).
#pragma once

#include <vector>

#include "api/model/describe_model.h"
#include "api/model/module_types.h"

namespace smp {

/// Marks the modules of these types. @throws as smp::set_activation_checkpointing()
void checkpoint_modules(const std::vector<ModelDescription*>& models, const ModuleTypes& types);

}  // namespace smp
