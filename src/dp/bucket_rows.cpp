// dp/bucket_rows.cpp: see the header.
#include "dp/bucket_rows.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <utility>

#include "d2d/tensors/tensor_data.h"

namespace smp::dp {

BucketRows::BucketRows(std::vector<at::Tensor> tensors, std::vector<int> owners)
    : tensors_(std::move(tensors)), owners_(std::move(owners)) {
  const at::NoGradGuard no_grad;
  for (const auto& tensor : tensors_) rows_.push_back(d2d::contiguous_data(tensor.detach()));
}

d2d::SumParts BucketRows::parts(int replicas) const {
  if (owners_.empty()) return {rows_, replicas};
  std::vector<std::vector<at::Tensor>> of_owners(static_cast<std::size_t>(replicas));
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    of_owners.at(static_cast<std::size_t>(owners_.at(i))).push_back(rows_[i]);
  }
  return d2d::SumParts::of_owners(of_owners);
}

void BucketRows::write_back() const {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (!rows_[i].is_alias_of(tensors_[i])) tensors_[i].detach().copy_(rows_[i]);
  }
}

}  // namespace smp::dp
