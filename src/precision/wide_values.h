// precision/wide_values.h: float32 values that were kept behind numbers of 16 bits.
#pragma once

#include <ATen/core/Tensor.h>

namespace smp::precision {

/// Returns new float32 values of `rounded`, of its shape: those of `kept` where these round to it;
/// elements that somebody has written since count as they are.
/// @param kept     float32; undefined, or of another shape or device: nothing was kept
/// @param rounded  bfloat16 or float16
at::Tensor wide_values(const at::Tensor& kept, const at::Tensor& rounded);

}  // namespace smp::precision
