// tp/group/slice_part.cpp: see the header.
#include "tp/group/slice_part.h"

#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <vector>

namespace smp::tp {

/// By operators that can be put off where initialisation is delayed.
at::Tensor part_of(const at::Tensor& whole, std::int64_t dim, std::int64_t size, int rank) {
  const at::NoGradGuard no_history;
  dim = at::maybe_wrap_dim(dim, whole.dim());
  const auto begin = std::min(rank * size, whole.size(dim));
  const auto length = std::min(size, whole.size(dim) - begin);
  const auto values = whole.detach().narrow(dim, begin, length);
  if (length == size) return values.clone(at::MemoryFormat::Contiguous);
  std::vector<std::int64_t> padding(static_cast<std::size_t>(2 * (whole.dim() - dim)), 0);
  padding.back() = size - length;
  return at::constant_pad_nd(values, padding);
}

}  // namespace smp::tp
