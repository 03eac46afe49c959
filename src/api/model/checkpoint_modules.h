// api/model/checkpoint_modules.h: modules whose activations are computed again (the key
// checkpoint_modules).
#pragma once

#include <string>
#include <vector>

#include "api/model/describe_model.h"

namespace smp {

/// Marks the modules of these types (module_types.h), as smp::set_activation_checkpointing does.
/// @param types  names with commas between them
/// @throws UsageError        no module of any model is of such a type; names the nearest.
/// @throws UnsupportedError  as smp::set_activation_checkpointing
void checkpoint_modules(const std::vector<ModelDescription*>& models, const std::string& types);

}  // namespace smp
