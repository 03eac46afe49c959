// server/detached.h: a tensor without its autograd history, and without the cost of detach().
#pragma once

#include <torch/csrc/autograd/variable.h>

namespace smp::server {

/// What tensor.detach() gives (same storage, same version counter), without the dispatcher. An
/// undefined tensor stays undefined.
inline at::Tensor detached(const at::Tensor& tensor) {
  return torch::autograd::make_variable_non_differentiable_view(tensor, tensor);
}

}  // namespace smp::server
