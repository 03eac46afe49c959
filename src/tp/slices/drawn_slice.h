// tp/slices/drawn_slice.h: a rank's slice of values that are drawn in order, without the whole.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace smp::tp {

struct DrawnSlice {
  at::Tensor slice;
  std::uint64_t hash = 0;  ///< of the whole values
};

using FillRows = std::function<void(const at::Tensor& rows, std::int64_t first)>;

/// Rows of a tensor of `sizes` and the default dtype, a piece at a time, in order, which `fill`
/// writes and `take` reads; both are given the number of the first one. No piece is empty; a whole
/// of 16 elements or more comes in pieces of as many, all but the last of a multiple of 16:
/// normal_() draws them in groups of 16. Where initialisation is delayed there is one piece.
/// @param piece  elements of one, about
void draw_rows(at::IntArrayRef sizes, const FillRows& fill, const FillRows& take,
               std::int64_t piece = 1 << 22);

/// Of such rows rank `rank`'s part of `size` along `dim`, filled up with zeros. Without a hash
/// where initialisation is delayed.
DrawnSlice draw_slice(at::IntArrayRef sizes, std::int64_t dim, std::int64_t size, int rank,
                      const FillRows& fill, std::int64_t piece = 1 << 22);

}  // namespace smp::tp
