// d2d/tensors/overlap.cpp: see the header.
#include "d2d/tensors/overlap.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace smp::d2d {

bool overlaps(const at::Tensor& tensor) {
  if (tensor.numel() < 2 || tensor.is_non_overlapping_and_dense()) return false;
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;  // stride and size
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) steps.emplace_back(tensor.stride(d), tensor.size(d));
  }
  std::sort(steps.begin(), steps.end());
  std::int64_t reach = 0;  // the farthest element that the dimensions so far come to
  for (const auto& [stride, size] : steps) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

at::Tensor unrepeated(const at::Tensor& tensor, const at::Tensor& values) {
  auto part = values;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) == 0 && tensor.size(d) > 1) part = part.narrow(d, 0, 1);
  }
  return part;
}

}  // namespace smp::d2d
