// api/optimizer/total_norm.h: one norm of tensors that are spread over the ranks, in the order of
// one process.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "smp/detail/model_list.h"

namespace smp {

/// The options of a norm, which all ranks must pass alike.
struct NormOptions {
  const char* caller;  ///< for errors, as "smp::clip_grad_norm_"
  double norm_type = 2;
  double max_norm = 0;
  bool error_if_nonfinite = false;
};

/// Returns the norm of the gradients of `parameters`, joined over slices, shards and stages.
/// Collective, outside of steps. If one rank has a reason to refuse, all of its pipeline do.
/// @return [], the same on every rank; undefined: there are no gradients.
/// @throws UsageError  as smp::clip_grad_norm_
[[nodiscard]] at::Tensor total_norm_of_gradients(const std::vector<at::Tensor>& parameters,
                                                 const NormOptions& options);
/// Returns the norm of their values. @throws UsageError  as smp::parameter_norm
[[nodiscard]] at::Tensor total_norm_of_values(const std::vector<at::Tensor>& parameters,
                                              const NormOptions& options);

/// Returns the parameters of `models`; one that several models hold counts once.
[[nodiscard]] std::vector<at::Tensor> parameters_of(ModelList models);

/// Refuses a call by `caller` inside a step. @throws UsageError  a step of this rank runs.
void refuse_in_step(const char* caller);

}  // namespace smp
