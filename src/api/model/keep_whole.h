// api/model/keep_whole.h: modules that the user does not want cut (the key keep_whole).
#pragma once

#include <vector>

#include "api/model/describe_model.h"
#include "api/model/module_types.h"

namespace smp {

/// Makes everything below a module of one of these types stay with that module.
void keep_whole(const std::vector<ModelDescription*>& models, const ModuleTypes& types);

}  // namespace smp
