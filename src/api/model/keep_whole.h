// api/model/keep_whole.h: modules that the user does not want cut (the key keep_whole).
#pragma once

#include <string>
#include <vector>

#include "api/model/describe_model.h"

namespace smp {

/// Makes everything below a module of one of these types (module_types.h) stay with that module.
/// @param types  names with commas between them
/// @throws UsageError  no module of any model is of such a type; names the nearest.
void keep_whole(const std::vector<ModelDescription*>& models, const std::string& types);

}  // namespace smp
