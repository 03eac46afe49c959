// deferred/meta_kernels.h: shapes of results for operators that LibTorch's C++ part has no shape
// function for (in Python they come from the interpreter).
#pragma once

#include <ATen/core/Tensor.h>

namespace smp::deferred {

/// Gives every CPU operator that does not know meta tensors a meta kernel, once a process. It finds
/// the shapes of the results by running the operator on zeros, so a meta operand needs real memory
/// for a moment. Operators whose shapes depend on values, such as nonzero, are left out. Threads:
/// any.
void add_meta_kernels();

/// Returns a meta tensor of the same shape and type. Meta tensors, and numbers that LibTorch
/// wrapped into a tensor, are returned as they are.
at::Tensor shape_of(const at::Tensor& tensor);

}  // namespace smp::deferred
