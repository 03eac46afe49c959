// dp/flat_tensors.cpp: see the header.
#include "dp/flat_tensors.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>

namespace smp::dp {

at::Tensor flattened(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> rows;
  rows.reserve(tensors.size());
  for (const auto& tensor : tensors) rows.push_back(tensor.detach().reshape({-1}));
  return rows.size() == 1 ? rows[0] : at::cat(rows);
}

void unflatten_into(const std::vector<at::Tensor>& tensors, const at::Tensor& flat) {
  const at::NoGradGuard no_grad;
  std::int64_t start = 0;
  for (const auto& tensor : tensors) {
    tensor.detach().copy_(flat.narrow(0, start, tensor.numel()).view(tensor.sizes()));
    start += tensor.numel();
  }
}

}  // namespace smp::dp
