// api/model/checkpoint_modules.cpp: see the header.
#include "api/model/checkpoint_modules.h"

#include "smp/recompute/activation_checkpointing.h"

namespace smp {

void checkpoint_modules(const std::vector<ModelDescription*>& models, const ModuleTypes& types) {
  for (const auto* model : models) {
    for (auto* module : model->modules) {
      if (types.contain(*module)) set_activation_checkpointing(*module);
    }
  }
}

}  // namespace smp
