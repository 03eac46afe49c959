// checkpoint/load_plan.h: which of the tensors that are offered goes where in a module.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/module_tensors.h"
#include "checkpoint/tensor_info.h"
#include "smp/state_dict.h"

namespace smp::checkpoint {

struct LoadPlan {
  /// For each tensor of the module the number of the one that is offered for it, if any.
  std::vector<std::optional<std::size_t>> sources;
  LoadResult result;
};

/// Depends on names, shapes and dtypes only. @param source  of `offered`, for the message
/// @throws UsageError  everything that PyTorch refuses, in one text.
LoadPlan plan_load(const std::vector<NamedTensor>& tensors, const std::vector<TensorInfo>& offered,
                   bool strict, const std::string& source);

/// What is wrong with `dict` as values for `tensors` whatever else it lacks; empty: nothing.
/// @param strict  different values for two names of one tensor are wrong
std::string problem_with(const std::vector<NamedTensor>& tensors, const StateDict& dict,
                         bool strict);

/// Copies `values` into a module's tensor, converting its dtype.
void store(const at::Tensor& tensor, const at::Tensor& values);

}  // namespace smp::checkpoint
