// tp/group/slice_part.h: a rank's part of a whole tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace smp::tp {

/// Part `rank` of those of `size` elements each that follow one another along `dim`: a copy without
/// history. Where `whole` ends before it does, it is filled up with zeros.
at::Tensor part_of(const at::Tensor& whole, std::int64_t dim, std::int64_t size, int rank);

}  // namespace smp::tp
