// api/model/placed_parameters.cpp: one walk over the models.
#include "api/model/placed_parameters.h"

#include "api/state/session_state.h"
#include "smp/distributed_model.h"

namespace smp {

PlacedParameters::PlacedParameters(const SessionState& state) {
  for (const auto* model : state.models()) {
    for (const auto& parameter : model->base_module().parameters()) {
      if (!parameter.defined()) continue;
      auto& known = known_[parameter.unsafeGetTensorImpl()];
      known.here &= model->owns(parameter);  // an unplaced model says so of all
      known.placed |= model->partitioned();
    }
  }
}

}  // namespace smp
