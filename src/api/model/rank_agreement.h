// api/model/rank_agreement.h: every rank builds the same model. Checked where ranks meet anyway: at
// placement, while each still has all values.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "api/model/describe_model.h"

namespace smp {

class Runtime;

/// Checks that all ranks have the same models: parameters, buffers and printed modules. All stages
/// call it, for the same models in the same order. What differs is named with both ranks' values.
/// Reads every value once. A buffer that differs is only warned about: its values may be of no
/// meaning. Ranks that hold slices of the same parameters must have cut them from the same values;
/// replicas must have the same parameters, unless those of the first are taken
/// (Config::initial_values).
/// @throws UsageError  on every rank.
void require_same_models(Runtime& runtime, const std::vector<const ModelDescription*>& models);

/// Returns for each of `parameters`, which are not placed yet, true if all replicas can read it, so
/// that require_same_models() shows that it is equal; false for all if those of the first replica
/// are taken. All replicas call it with the same ones.
std::vector<bool> compared(Runtime& runtime, const std::vector<at::Tensor>& parameters);

}  // namespace smp
