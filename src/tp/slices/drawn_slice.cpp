// tp/slices/drawn_slice.cpp: pieces of rows, each cut as soon as it is filled.
#include "tp/slices/drawn_slice.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>

#include "tp/group/slice_part.h"

namespace smp::tp {
namespace {

constexpr std::int64_t kGroup = 16;  // of numbers that normal_() draws together

/// Returns the rows of each piece but the last, which has up to twice as many.
std::int64_t rows_of_piece(at::IntArrayRef sizes, std::int64_t elements) {
  const auto row = std::max<std::int64_t>(1, c10::multiply_integers(sizes.slice(1)));
  return (elements / row / kGroup + 1) * kGroup;
}

using HashState = std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)>;

/// True while initialisation is delayed: then there is no memory to save, and no value to hash.
bool is_delayed() { return at::empty({0}).is_meta(); }

DrawnSlice draw_at_once(at::IntArrayRef sizes, std::int64_t dim, std::int64_t size, int rank,
                        const FillRows& fill) {
  auto whole = at::empty(sizes);
  fill(whole, 0);
  return {part_of(whole, dim, size, rank), 0};
}

/// Copies the part of the slice that lies in rows `first` and on of the whole.
void copy_part(const at::Tensor& rows, std::int64_t first, std::int64_t dim, int rank,
               const at::Tensor& slice) {
  const auto size = slice.size(dim);
  if (dim != 0) {
    slice.narrow(0, first, rows.size(0)).copy_(part_of(rows, dim, size, rank));
    return;
  }
  const auto begin = std::max(first, rank * size);
  const auto end = std::min(first + rows.size(0), (rank + 1) * size);
  if (begin >= end) return;
  slice.narrow(0, begin - rank * size, end - begin)
      .copy_(rows.narrow(0, begin - first, end - begin));
}

}  // namespace

void draw_rows(at::IntArrayRef sizes, const FillRows& fill, const FillRows& take,
               std::int64_t piece) {
  const at::NoGradGuard no_history;
  const auto step = rows_of_piece(sizes, piece);
  auto sizes_of_piece = sizes.vec();
  for (std::int64_t first = 0; first < sizes[0]; first += sizes_of_piece[0]) {
    const auto left = sizes[0] - first;
    sizes_of_piece[0] = is_delayed() || left < 2 * step ? left : step;
    const auto rows = at::empty(sizes_of_piece);
    fill(rows, first);
    take(rows, first);
  }
}

DrawnSlice draw_slice(at::IntArrayRef sizes, std::int64_t dim, std::int64_t size, int rank,
                      const FillRows& fill, std::int64_t piece) {
  const at::NoGradGuard no_history;
  if (is_delayed()) return draw_at_once(sizes, dim, size, rank, fill);
  auto sizes_of_slice = sizes.vec();
  sizes_of_slice[dim] = size;
  DrawnSlice drawn{at::zeros(sizes_of_slice), 0};
  const HashState hash(XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset(hash.get());
  const auto take = [&](const at::Tensor& rows, std::int64_t first) {
    XXH3_64bits_update(hash.get(), rows.const_data_ptr(), rows.nbytes());
    copy_part(rows, first, dim, rank, drawn.slice);
  };
  draw_rows(sizes, fill, take, piece);
  drawn.hash = XXH3_64bits_digest(hash.get());
  return drawn;
}

}  // namespace smp::tp
