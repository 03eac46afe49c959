// api/model/rank_agreement.h: every rank builds the same model. Checked where ranks meet anyway: at
// placement, while each still has all values.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "api/model/describe_model.h"

namespace smp {

class Rank;

/// Checks that all ranks have the same models: parameters, buffers and printed modules. All stages
/// call it, for the same models in the same order. What differs is named with both ranks' values.
/// Reads every value once. A buffer that differs is only warned about: its values may be of no
/// meaning. Ranks that hold slices of the same parameters must have cut them from the same values;
/// replicas must have the same parameters, unless those of the first are taken
/// (Config::initial_values).
/// @throws UsageError  on every rank.
void require_same_models(const Rank& rank, const std::vector<const ModelDescription*>& models);

/// Which of `parameters`, as long as they are not placed, all replicas can read, so that they are
/// equal after require_same_models(); none, if those of the first are taken. All replicas call it
/// with the same ones.
std::vector<bool> compared(const Rank& rank, const std::vector<at::Tensor>& parameters);

}  // namespace smp
