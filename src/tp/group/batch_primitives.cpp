// tp/group/batch_primitives.cpp: see the header.
#include "smp/tp/batch_primitives.h"

#include "smp/tp/primitives.h"
#include "tp/group/tensor_parallel.h"

namespace smp {
namespace {

bool same_batch() { return tp::TensorParallel::current().same_batch(); }

}  // namespace

at::Tensor slices_of_batch_for_tp(const at::Tensor& batch, std::int64_t dim) {
  return same_batch() ? own_part_for_tp(batch, dim) : scatter_and_merge_for_tp(batch, dim, 0);
}

at::Tensor batch_of_slices_for_tp(const at::Tensor& slices, std::int64_t dim) {
  return same_batch() ? join_parts_for_tp(slices, dim) : scatter_and_merge_for_tp(slices, 0, dim);
}

/// Gathers the samples of all ranks. A prescaled batch needs nothing in forward; a tensor without
/// history (tokens, labels, masks) has no backward either, so it is returned as it is.
at::Tensor whole_batch_for_tp(const at::Tensor& batch) {
  if (!same_batch()) return fused_allgather_for_tp(batch, 0);
  return batch.requires_grad() ? bwd_allreduce_for_tp(batch) : batch;
}

at::Tensor batch_of_sums_for_tp(const at::Tensor& addends) {
  return same_batch() ? fwd_allreduce_for_tp(addends) : reduce_scatter_for_tp(addends, 0);
}

}  // namespace smp
