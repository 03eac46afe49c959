// smp/norms.h: norms of gradients and of parameters over all ranks, and whether gradients
// overflowed.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "smp/detail/export.h"
#include "smp/detail/model_list.h"

namespace smp {

/// Returns the common norm of the gradients of `parameters`, wherever they live. It is the norm
/// that clip_grad_norm_() (smp/clip_grad.h) returns, with the same rules and errors, but nothing is
/// scaled. It is the same on every rank, and 0 if there are no gradients. All ranks call it,
/// after a step.
SMP_API double grad_norm(const std::vector<at::Tensor>& parameters, double norm_type = 2.0);
/// Returns the norm for all parameters of `models`; a parameter that several models hold counts
/// once.
SMP_API double grad_norm(ModelList models, double norm_type = 2.0);
SMP_API double grad_norm(DistributedModelBase& model, double norm_type = 2.0);

/// True if an element of a gradient is infinite or not a number on any rank. All ranks get the same
/// answer, so they skip their step together, as where float16 losses are scaled.
///
///     if (!smp::grad_overflow(model)) optimizer.step();
///
/// All ranks call it, after a step. It throws the errors of grad_norm().
SMP_API bool grad_overflow(const std::vector<at::Tensor>& parameters);
SMP_API bool grad_overflow(ModelList models);
SMP_API bool grad_overflow(DistributedModelBase& model);

/// Returns the common norm of the values of `parameters`, wherever they live: each counts once,
/// whichever ranks hold it or slices of it. Integers and booleans do not count. All ranks call
/// it, after a step.
/// @throws UsageError  inside a step; a model is not placed yet; ranks pass another `norm_type`; a
///                     tensor belongs to no model that lives, and there are several ranks.
SMP_API double parameter_norm(const std::vector<at::Tensor>& parameters, double norm_type = 2.0);
SMP_API double parameter_norm(ModelList models, double norm_type = 2.0);
SMP_API double parameter_norm(DistributedModelBase& model, double norm_type = 2.0);

}  // namespace smp
