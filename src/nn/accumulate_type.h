// nn/accumulate_type.h: the dtype in which sums over an input are made.
#pragma once

#include <ATen/ATen.h>

namespace smp::nn {

/// Returns `tensor` in float32 if it has 16 bits or fewer, else itself.
inline at::Tensor in_accumulate_type(const at::Tensor& tensor) {
  return tensor.element_size() < 4 ? tensor.to(at::kFloat) : tensor;
}

}  // namespace smp::nn
