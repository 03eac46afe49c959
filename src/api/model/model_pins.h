// api/model/model_pins.h: modules of a model whose stage is decided before it is planned.
#pragma once

#include <vector>

#include "api/model/describe_model.h"
#include "partition/model/pin.h"

namespace smp {

/// Returns all pins of a model, the more specific last: those of scopes of smp::partition, then
/// `pins`, which are set_partition()'s, then modules that another model has placed, which stay
/// where their values are.
/// @throws UsageError  `pins` say otherwise; a model would not begin on stage 0.
std::vector<partitioning::Pin> all_pins(const ModelDescription& description,
                                        const std::vector<partitioning::Pin>& pins);

}  // namespace smp
