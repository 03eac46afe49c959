// dp/bucket_rows.h: the tensors of a bucket as they travel. Threads: the rank's.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "d2d/collectives/sum_parts.h"

namespace smp::dp {

/// Contiguous rows for the tensors of a bucket: the tensors themselves where their elements are
/// adjacent as they are stored, else copies (of strided ones, and of lazy conjugates and
/// negatives).
class BucketRows {
 public:
  /// @param owners  the position in the replicas that owns each tensor; empty: nobody owns any
  explicit BucketRows(std::vector<at::Tensor> tensors, std::vector<int> owners = {});

  const std::vector<at::Tensor>& tensors() const noexcept { return tensors_; }
  const std::vector<at::Tensor>& rows() const noexcept { return rows_; }
  /// Returns the part of the rows that each of `replicas` adds up or sends: an equal part, or the
  /// tensors that it owns.
  d2d::SumParts parts(int replicas) const;
  /// Copies the rows into the tensors where they are not the same memory.
  void write_back() const;

 private:
  std::vector<at::Tensor> tensors_, rows_;
  std::vector<int> owners_;
};

}  // namespace smp::dp
