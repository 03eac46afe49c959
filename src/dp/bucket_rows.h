// dp/bucket_rows.h: the tensors of a bucket as they travel. Threads: the rank's.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "d2d/collectives/sum_parts.h"

namespace smp::dp {

/// Tensors whose elements lie one after another, and copies of others.
class BucketRows {
 public:
  /// @param owners  positions among the replicas, one for each tensor, or none: nobody owns them
  explicit BucketRows(std::vector<at::Tensor> tensors, std::vector<int> owners = {});

  const std::vector<at::Tensor>& tensors() const noexcept { return tensors_; }
  const std::vector<at::Tensor>& rows() const noexcept { return rows_; }
  /// What each of `replicas` adds up, or gives: an equal part, or what it owns.
  d2d::SumParts parts(int replicas) const;
  /// What was written to the rows is in the tensors afterwards.
  void write_back() const;

 private:
  std::vector<at::Tensor> tensors_, rows_;
  std::vector<int> owners_;
};

}  // namespace smp::dp
