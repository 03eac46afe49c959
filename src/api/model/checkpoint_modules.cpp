// api/model/checkpoint_modules.cpp: see the header.
#include "api/model/checkpoint_modules.h"

#include "api/model/module_types.h"
#include "smp/recompute/activation_checkpointing.h"

namespace smp {

void checkpoint_modules(const std::vector<ModelDescription*>& models, const std::string& types) {
  const ModuleTypes wanted("checkpoint_modules", types);
  if (wanted.empty()) return;
  wanted.require_known(models);
  for (const auto* model : models) {
    for (auto* module : model->modules) {
      if (wanted.contain(*module)) set_activation_checkpointing(*module);
    }
  }
}

}  // namespace smp
