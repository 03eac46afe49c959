// smp/clip_grad.h: torch::nn::utils::clip_grad_norm_ and clip_grad_value_ over all ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/utils/clip_grad.h>

#include <concepts>
#include <type_traits>
#include <utility>
#include <vector>

#include "smp/detail/export.h"
#include "smp/detail/model_list.h"

namespace smp {

/// Scales the gradients of `parameters`, wherever they live, so that their common norm is at most
/// `max_norm`. Returns the norm before scaling, the same on every rank. The parameters may belong
/// to one model, to several, or to none (then the gradient is on the rank that used the parameter),
/// and may be all of them or this rank's own; parameters without a gradient do not count. The
/// result equals that of torch::nn::utils::clip_grad_norm_ over the same parameters in one process,
/// except that sparse gradients are scaled like dense ones; LibTorch leaves them as they are. All
/// ranks call it, after a step. The stages of a pipeline send each other one message; ranks that
/// share slices or the optimizer's state send one or two more. Replicas that pass different options
/// are told so by the next step.
///
/// @param parameters           whose gradients are scaled
/// @param max_norm             the largest norm that they may have together
/// @param norm_type            1, 2, any p, 0 (counts gradients), infinity
/// @param error_if_nonfinite   whether a norm that is not finite is an error
/// @throws UsageError     it is called inside a step, or after one under no_sync(); ranks pass
///                        different options; a tensor of no model has gradients on two ranks, or on
///                        one where there are replicas; the norm is not finite and
///                        `error_if_nonfinite` is set.
/// @throws PeerLostError  a rank left.
SMP_API double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                               double norm_type = 2.0, bool error_if_nonfinite = false);
/// Clips the gradients of all parameters of `models`; a parameter that several models hold counts
/// once.
SMP_API double clip_grad_norm_(ModelList models, double max_norm, double norm_type = 2.0,
                               bool error_if_nonfinite = false);
SMP_API double clip_grad_norm_(DistributedModelBase& model, double max_norm, double norm_type = 2.0,
                               bool error_if_nonfinite = false);

/// Clamps every element of the gradients that this rank holds to [-clip_value, clip_value]. All
/// ranks call it, after a step. Nothing is sent, so replicas that pass different values are not
/// detected. @throws UsageError  inside a step.
SMP_API void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);
SMP_API void clip_grad_value_(ModelList models, double clip_value);
SMP_API void clip_grad_value_(DistributedModelBase& model, double clip_value);

namespace detail {

/// True if clipping `parameters` concerns other ranks: one of them belongs to a model of this
/// rank's session, or the list is empty because this rank owns nothing of a placed model.
SMP_API bool any_placed(const std::vector<at::Tensor>& parameters) noexcept;

/// A list of tensors that binds better here than to LibTorch's `const std::vector&`: a temporary,
/// or a variable that is not const.
template <class List>
concept TensorList = std::same_as<std::remove_reference_t<List>, std::vector<at::Tensor>>;

}  // namespace detail
}  // namespace smp

/// Forwards to smp::clip_grad_norm_ for parameters of a model, if smp.h is included. LibTorch's own
/// function sees the gradients of one rank only and would scale by their part of the norm. Not
/// caught: a const std::vector, a braced list, a single tensor, and code that does not include
/// smp.h. LibTorch's clip_grad_value_ works element by element and is right as it is.
namespace torch::nn::utils {

template <smp::detail::TensorList List>
double clip_grad_norm_(List&& parameters, double max_norm, double norm_type = 2.0,
                       bool error_if_nonfinite = false) {
  const std::vector<at::Tensor>& all = parameters;
  return smp::detail::any_placed(all)
             ? smp::clip_grad_norm_(all, max_norm, norm_type, error_if_nonfinite)
             : clip_grad_norm_(all, max_norm, norm_type, error_if_nonfinite);
}

}  // namespace torch::nn::utils
