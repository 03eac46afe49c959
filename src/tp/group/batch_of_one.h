// tp/group/batch_of_one.h: layers take a single row, as those of torch::nn do, though ranks
// exchange batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace smp::tp {

/// Returns `compute(input)`; of an input that is one row, with no more than `row_dims` dimensions,
/// the result for a batch of that row, without the dimension of the batch.
template <class Compute>
at::Tensor of_batch(const at::Tensor& input, std::int64_t row_dims, Compute&& compute) {
  if (input.dim() > row_dims) return std::forward<Compute>(compute)(input);
  return std::forward<Compute>(compute)(input.unsqueeze(0)).squeeze(0);
}

}  // namespace smp::tp
