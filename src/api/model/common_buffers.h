// api/model/common_buffers.h: which buffers every rank holds, wherever their module runs.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace smp {

/// Whether `buffer` of module `holder` stays on all ranks, since any code may read it: if it is
/// small (partitioning::kSmallBuffer), and if it is not dense, since such a one cannot be kept away
/// from other ranks. Not so running statistics.
[[nodiscard]] bool stays_everywhere(const torch::nn::Module& holder, const at::Tensor& buffer);

}  // namespace smp
