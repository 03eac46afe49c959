// api/optimizer/total_norm.h: one norm of tensors that are spread over the ranks, in the order of
// one process.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "smp/detail/model_list.h"

namespace smp {

/// What all ranks must pass alike.
struct NormOptions {
  const char* caller;  ///< for errors, as "smp::clip_grad_norm_"
  double norm_type = 2;
  double max_norm = 0;
  bool error_if_nonfinite = false;
};

/// Of the gradients of `parameters`, whose parts are summed up over slices, shards and stages.
/// Collective, outside of steps. @return [], the same on every rank; undefined: there are none.
/// Where one rank has a reason to refuse, all of its pipeline do.
/// @throws UsageError  as smp::clip_grad_norm_
[[nodiscard]] at::Tensor total_norm_of_gradients(const std::vector<at::Tensor>& parameters,
                                                 const NormOptions& options);
/// Of their values. @throws UsageError  as smp::parameter_norm
[[nodiscard]] at::Tensor total_norm_of_values(const std::vector<at::Tensor>& parameters,
                                              const NormOptions& options);

/// One that several models hold counts once.
[[nodiscard]] std::vector<at::Tensor> parameters_of(ModelList models);

/// @throws UsageError  a step of this rank runs.
void refuse_in_step(const char* caller);

}  // namespace smp
