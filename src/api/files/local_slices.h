// api/files/local_slices.h: the slices in what local_state_dict() gives a rank.
#pragma once

#include <string>

#include "smp/state_dict.h"

namespace smp {

class DistributedModelBase;

/// Notes in `part`, what local_state_dict() of `model` gives here, whose slices are in it.
void mark_slices(const DistributedModelBase& model, StateDict& part);

/// Returns `dict` with the slices of a part that is marked so joined to the whole tensors that
/// load_model() takes: without the mark a tensor of a slice's size is one of another model. All
/// ranks that hold slices of the model call it. Suspends.
/// @param problem  set where a part is another rank's, or other ranks do not give the other slices
StateDict with_wholes(const DistributedModelBase& model, const StateDict& dict,
                      std::string& problem);

}  // namespace smp
