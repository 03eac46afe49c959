// tp/slices/sliced_norm.h: normalisation of rows of which each rank of a TP_GROUP has a slice
// (paper App. F.2).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace smp::tp {

/// Applies layer normalisation to this rank's slices [.., H/T] of rows of `size` elements. Sums and
/// sums of squares of all slices are added up in one all-reduce of two numbers a row, in forward
/// and in backward. They are doubles, so that rows of float and of half precision lose no digits to
/// a mean that is large against their deviation; rows of doubles lose twice the digits of that
/// ratio. Keeps the slices for backward, and some numbers a row. Suspends.
///
/// @param weight  [H/T], or undefined like `bias`
/// @return [.., H/T] of the type of `slices`
at::Tensor normalized_slices(const at::Tensor& slices, const at::Tensor& weight,
                             const at::Tensor& bias, double epsilon, std::int64_t size);

}  // namespace smp::tp
