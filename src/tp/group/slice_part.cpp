// tp/group/slice_part.cpp: see the header.
#include "tp/group/slice_part.h"

#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace smp::tp {

at::Tensor part_of(const at::Tensor& whole, std::int64_t dim, std::int64_t size, int rank) {
  const at::NoGradGuard no_history;
  dim = at::maybe_wrap_dim(dim, whole.dim());
  const auto begin = std::min(rank * size, whole.size(dim));
  const auto length = std::min(size, whole.size(dim) - begin);
  const auto values = whole.detach().narrow(dim, begin, length);
  if (length == size) return values.clone(at::MemoryFormat::Contiguous);
  auto sizes = whole.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = size;
  auto part = at::zeros(sizes, whole.options());
  part.narrow(dim, 0, length).copy_(values);
  return part;
}

}  // namespace smp::tp
