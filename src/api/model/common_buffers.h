// api/model/common_buffers.h: which buffers every rank holds, wherever their module runs.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace smp {

/// True if `buffer` of module `holder` stays on all ranks. Small buffers do
/// (partitioning::kSmallBuffer), because any code may read them, and buffers that are not dense,
/// because they cannot be kept away from other ranks. Running statistics do not.
[[nodiscard]] bool stays_everywhere(const torch::nn::Module& holder, const at::Tensor& buffer);

}  // namespace smp
