// api/rank_agreement.h: every rank builds the same model. Checked where ranks meet anyway: at
// placement, while each still has all values.
#pragma once

#include <vector>

#include "api/describe_model.h"

namespace smp {

class Runtime;

/// Parameters, buffers and printed modules of the models, which all stages call it for, in the same
/// order. What differs is named with both ranks' values. Reads every value once. A buffer that
/// differs is only warned about: its values may be of no meaning. Ranks that hold slices of the
/// same parameters must have cut them from the same values.
/// @throws UsageError  on every rank.
void require_same_models(Runtime& runtime, const std::vector<const ModelDescription*>& models);

}  // namespace smp
