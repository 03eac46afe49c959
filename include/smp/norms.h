// smp/norms.h: norms of gradients and of parameters over all ranks, and whether gradients
// overflowed.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "smp/detail/export.h"
#include "smp/detail/model_list.h"

namespace smp {

/// The common norm of the gradients of `parameters`, wherever they live: what
/// clip_grad_norm_() (smp/clip_grad.h) returns, with its rules and errors, and nothing is scaled.
/// The same on every rank; 0 where there are none. Every rank calls it, after a step.
SMP_API double grad_norm(const std::vector<at::Tensor>& parameters, double norm_type = 2.0);
/// Of all parameters of `models`; one that several hold counts once.
SMP_API double grad_norm(ModelList models, double norm_type = 2.0);
SMP_API double grad_norm(DistributedModelBase& model, double norm_type = 2.0);

/// Whether an element of a gradient is infinite or not a number, on any rank: then all of them know
/// and skip their step together, as where float16 losses are scaled.
///
///     if (!smp::grad_overflow(model)) optimizer.step();
///
/// Calls and errors as grad_norm().
SMP_API bool grad_overflow(const std::vector<at::Tensor>& parameters);
SMP_API bool grad_overflow(ModelList models);
SMP_API bool grad_overflow(DistributedModelBase& model);

/// The common norm of the values of `parameters`, wherever they live: each counts once, whichever
/// ranks hold it or slices of it. Types that are not floating-point count nothing. Calls as
/// grad_norm().
/// @throws UsageError  inside a step; a model is not placed yet; ranks pass another `norm_type`; a
///                     tensor belongs to no model that lives, and there are several ranks.
SMP_API double parameter_norm(const std::vector<at::Tensor>& parameters, double norm_type = 2.0);
SMP_API double parameter_norm(ModelList models, double norm_type = 2.0);
SMP_API double parameter_norm(DistributedModelBase& model, double norm_type = 2.0);

}  // namespace smp
