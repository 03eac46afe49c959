// api/optimizer/optimizer_memory.h: the memory that an optimizer is going to take, for plans.
#pragma once

#include <torch/optim/optimizer.h>

#include "smp/config.h"

namespace smp {

/// Returns how many bytes an optimizer keeps for each byte of a weight, by the first of its group;
/// with float32 sums of a step's gradients, which are there when it is fullest.
double bytes_per_weight_byte(const Config& config, torch::optim::OptimizerParamGroup& group);

}  // namespace smp
