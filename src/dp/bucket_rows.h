// dp/bucket_rows.h: the gradients of a bucket as a sum needs them. Threads: the rank's.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace smp::dp {

/// Gradients whose elements lie one after another, and copies of others.
class BucketRows {
 public:
  explicit BucketRows(std::vector<at::Tensor> gradients);

  const std::vector<at::Tensor>& gradients() const noexcept { return gradients_; }
  const std::vector<at::Tensor>& rows() const noexcept { return rows_; }
  /// What was written to the rows is in the gradients afterwards.
  void write_back() const;

 private:
  std::vector<at::Tensor> gradients_, rows_;
};

}  // namespace smp::dp
