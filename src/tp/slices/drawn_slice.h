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

/// Draws a tensor of `sizes` and the default dtype a piece of rows at a time, in order: `fill`
/// writes a piece and `take` reads it; both are given the index of its first row. No piece is
/// empty; a whole of 16 elements or more comes in pieces of as many, all but the last of a multiple
/// of 16: normal_() draws them in groups of 16. Where initialisation is delayed there is one piece.
/// @param piece  about how many elements a piece has
void draw_rows(at::IntArrayRef sizes, const FillRows& fill, const FillRows& take,
               std::int64_t piece = 1 << 22);

/// Draws such rows and returns part `rank` of `size` along `dim`, filled up with zeros. The hash is
/// 0 where initialisation is delayed.
DrawnSlice draw_slice(at::IntArrayRef sizes, std::int64_t dim, std::int64_t size, int rank,
                      const FillRows& fill, std::int64_t piece = 1 << 22);

}  // namespace smp::tp
