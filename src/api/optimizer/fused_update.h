// api/optimizer/fused_update.h: steps of LibTorch's Adam, AdamW and SGD in one pass over memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <optional>

#include "precision/fused_step.h"

namespace smp {

/// True if `optimizer` is one whose steps of single parameters can be made here: LibTorch's Adam,
/// AdamW or SGD, and no class that somebody derived from it.
bool may_fuse(const torch::optim::Optimizer& optimizer);

/// Steps one parameter with a gradient, with the state that LibTorch keeps for it, in float32, and
/// with its options in `group`. Returns false, and has done nothing, if that has to be done in
/// another way: maxima of squares (amsgrad), sparse or odd gradients, other types or devices, state
/// of another type.
/// @param master  what was rounded to the parameter; undefined: there is none
/// @param chance  how to round a bfloat16 parameter by chance; nothing: to nearest
bool fused_update(torch::optim::Optimizer& optimizer, torch::optim::OptimizerParamGroup& group,
                  const at::Tensor& parameter, const at::Tensor& master,
                  const std::optional<precision::Chance>& chance);

}  // namespace smp
