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
/// `max_norm`; returns the norm before, the same on every rank. Any parameters: of one model or
/// several, of none (their gradient is on the rank that used them), all or only this rank's own;
/// parameters without a gradient count nothing. Equal to torch::nn::utils::clip_grad_norm_ over the
/// same parameters in one process, but that sparse gradients are scaled like dense ones; LibTorch
/// leaves them as they are. Every rank calls it, after a step. Stages of a pipeline send each other
/// one message, ranks that share slices or the optimizer's state one or two more; replicas find
/// out at the end of the next step if they passed other options.
///
/// @param norm_type  1, 2, any p, 0 (counts gradients), infinity
/// @throws UsageError     inside a step, or after one under no_sync(); ranks pass other options; a
///                        tensor of no model has gradients on two ranks, or on one where there are
///                        replicas; the norm is not finite and `error_if_nonfinite`.
///                        PeerLostError: a rank left.
SMP_API double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                               double norm_type = 2.0, bool error_if_nonfinite = false);
/// Of all parameters of `models`; one that several hold counts once.
SMP_API double clip_grad_norm_(ModelList models, double max_norm, double norm_type = 2.0,
                               bool error_if_nonfinite = false);
SMP_API double clip_grad_norm_(DistributedModelBase& model, double max_norm, double norm_type = 2.0,
                               bool error_if_nonfinite = false);

/// Clamps every element of the gradients that this rank holds to [-clip_value, clip_value]. Every
/// rank calls it, after a step; nothing is sent, so nobody finds out where replicas pass other
/// values. @throws UsageError  inside a step.
SMP_API void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);
SMP_API void clip_grad_value_(ModelList models, double clip_value);
SMP_API void clip_grad_value_(DistributedModelBase& model, double clip_value);

namespace detail {

/// Whether one of `parameters` belongs to a placed model of a session with several ranks.
SMP_API bool any_placed(const std::vector<at::Tensor>& parameters) noexcept;

/// A list of tensors that binds better here than to LibTorch's `const std::vector&`: a temporary,
/// or a variable that is not const.
template <class List>
concept TensorList = std::same_as<std::remove_reference_t<List>, std::vector<at::Tensor>>;

}  // namespace detail
}  // namespace smp

/// LibTorch's own function sees the gradients of one rank only, and would scale by that share of
/// the norm. Where smp.h is included, a call of it with parameters of a model is the one above. Not
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
