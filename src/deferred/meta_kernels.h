// deferred/meta_kernels.h: shapes of results for operators that LibTorch's C++ part has no shape
// function for (in Python they come from the interpreter).
#pragma once

#include <ATen/core/Tensor.h>

namespace smp::deferred {

/// Teaches the dispatcher, once a process, every CPU operator that does not know meta tensors: the
/// shapes of its results are found by running it on zeros, of which a meta operand needs one.
/// Left out are operators whose shapes depend on values, such as nonzero. Threads: any.
void add_meta_kernels();

/// A meta tensor of the same shape and type. Meta tensors, and numbers that LibTorch wrapped into
/// a tensor, are returned as they are.
at::Tensor shape_of(const at::Tensor& tensor);

}  // namespace smp::deferred
