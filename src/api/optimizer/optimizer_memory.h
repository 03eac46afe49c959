// api/optimizer/optimizer_memory.h: the memory that an optimizer is going to take, for plans.
#pragma once

#include <torch/optim/optimizer.h>

#include "smp/config.h"

namespace smp {

/// Returns how many bytes an optimizer keeps for each byte of a weight, by the first of its group;
/// with what is there beside it when memory is fullest: float32 sums of a step's gradients,
/// gradients that a scaler made float32, weights that autocast has cast.
double bytes_per_weight_byte(const Config& config, torch::optim::OptimizerParamGroup& group);

}  // namespace smp
