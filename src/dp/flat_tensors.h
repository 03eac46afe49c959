// dp/flat_tensors.h: several tensors of one dtype as one row of elements, and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace smp::dp {

/// Returns the elements of all `tensors` in one row, each in the order of its indices, one tensor
/// behind the other. May share memory with the tensor if there is only one.
at::Tensor flattened(const std::vector<at::Tensor>& tensors);

/// Writes the elements of `flat`, as flattened() put them, into `tensors`, which keep their memory
/// and their strides. Nothing of it is recorded by autograd.
void unflatten_into(const std::vector<at::Tensor>& tensors, const at::Tensor& flat);

}  // namespace smp::dp
