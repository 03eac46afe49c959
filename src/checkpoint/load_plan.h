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
  /// For each tensor of the module, the index in `offered` of the tensor loaded into it, if any.
  std::vector<std::optional<std::size_t>> sources;
  LoadResult result;
};

/// Decides which offered tensor goes into which tensor of the module, from names, shapes and dtypes
/// alone.
/// @param source  the origin of `offered`, for messages
/// @throws UsageError  everything that PyTorch's load_state_dict refuses, in one text.
LoadPlan plan_load(const std::vector<NamedTensor>& tensors, const std::vector<TensorInfo>& offered,
                   bool strict, const std::string& source);

/// Returns why `dict` cannot be loaded into `tensors`, apart from names, shapes and dtypes: it has
/// a tensor without dense values, or different values for one tensor. Empty if nothing is wrong.
/// @param strict  refuse different values for two names of one tensor
std::string problem_with(const std::vector<NamedTensor>& tensors, const StateDict& dict,
                         bool strict);

/// Copies `values` into a module's tensor, converting its dtype.
void store(const at::Tensor& tensor, const at::Tensor& values);

}  // namespace smp::checkpoint
