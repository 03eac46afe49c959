// d2d/tensors/value_hash.h: whether ranks have the same values, told in eight bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace smp::d2d {

/// Returns a hash of the values of `tensor`, which is dense and may be on any device, in the order
/// of its indices. Strides do not count, nor do type and shape. A NaN equals every other one:
/// its sign and payload depend on where in a vector of the processor it was computed. Zeros of
/// different sign differ.
[[nodiscard]] std::uint64_t value_hash(const at::Tensor& tensor, std::uint64_t seed = 0);

}  // namespace smp::d2d
