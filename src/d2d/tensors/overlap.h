// d2d/tensors/overlap.h: tensors whose elements share memory, such as one row that is expanded to
// many. LibTorch does not write them.
#pragma once

#include <ATen/core/Tensor.h>

namespace smp::d2d {

/// True if two elements of `tensor`, which is dense, may share memory. Only sizes and strides
/// count, so its values need not be here.
[[nodiscard]] bool overlaps(const at::Tensor& tensor);

/// Returns the part of `values` that lies where `tensor`, of the same shape, has memory for it: the
/// first of each elements that an expanded tensor repeats. `tensor` itself may be `values`.
[[nodiscard]] at::Tensor unrepeated(const at::Tensor& tensor, const at::Tensor& values);

}  // namespace smp::d2d
