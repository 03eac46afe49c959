// tp/group/slice_part.h: a rank's part of a whole tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace smp::tp {

/// Returns part `rank` of the parts of `size` elements each that follow one another along `dim`: a
/// copy without history. Where `whole` ends within the part, it is filled up with zeros.
at::Tensor part_of(const at::Tensor& whole, std::int64_t dim, std::int64_t size, int rank);

}  // namespace smp::tp
