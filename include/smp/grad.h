// smp/grad.h: gradients with respect to chosen tensors, through modules of other ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "smp/detail/export.h"

namespace smp {

/// Returns the gradients of `outputs` with respect to `inputs` like torch::autograd::grad(), for
/// graphs of a step's body or of a routed module: one per input, undefined for an unused input that
/// `allow_unused` permits. Leaves are not touched and nothing is scaled by the microbatch's weight.
/// Suspends the caller while modules on other ranks answer. Defaults are LibTorch's.
///
/// With `create_graph` (gradient penalties, Hessian-vector products, inner steps of MAML) the
/// gradients can be differentiated again, by this function and by model.backward(), wherever the
/// modules between outputs and inputs live. Their graph is freed by the first pass that does not
/// keep it, or with them, and at the end of the step.
/// @throws UsageError        an input is a parameter of another rank, or was not used; outputs that
///                           need no gradient, or are no numbers and have none in `grad_outputs`.
/// @throws RemoteError       what a hook or node on another rank threw.
SMP_API std::vector<at::Tensor> grad(const std::vector<at::Tensor>& outputs,
                                     const std::vector<at::Tensor>& inputs,
                                     const std::vector<at::Tensor>& grad_outputs = {},
                                     std::optional<bool> retain_graph = std::nullopt,
                                     bool create_graph = false, bool allow_unused = false);

}  // namespace smp
