// dp/bucket_rows.cpp: see the header.
#include "dp/bucket_rows.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

namespace smp::dp {

BucketRows::BucketRows(std::vector<at::Tensor> gradients) : gradients_(std::move(gradients)) {
  const at::NoGradGuard no_grad;
  for (const auto& gradient : gradients_) rows_.push_back(gradient.detach().contiguous());
}

void BucketRows::write_back() const {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (!rows_[i].is_alias_of(gradients_[i])) gradients_[i].detach().copy_(rows_[i]);
  }
}

}  // namespace smp::dp
