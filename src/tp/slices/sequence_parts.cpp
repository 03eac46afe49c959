// tp/slices/sequence_parts.cpp: see the header.
#include "tp/slices/sequence_parts.h"

#include <ATen/ATen.h>

#include "smp/tp/primitives.h"
#include "tp/group/tensor_parallel.h"

namespace smp::tp {
namespace {

/// Fills up a sequence so that it can be cut.
at::Tensor padded(const at::Tensor& whole, double with) {
  const auto ranks = TensorParallel::current().size();
  const auto beyond = (ranks - whole.size(1) % ranks) % ranks;
  return beyond == 0 ? whole : at::constant_pad_nd(whole, {0, 0, 0, beyond}, with);
}

at::Tensor unpadded(const at::Tensor& whole, std::int64_t length) {
  return whole.size(1) == length ? whole : whole.narrow(1, 0, length);
}

}  // namespace

/// Ones, because norms of zeros need not be numbers.
at::Tensor part_of_sequence(const at::Tensor& whole) {
  return own_part_for_tp(padded(whole, 1), 1);
}

at::Tensor whole_sequence(const at::Tensor& part, std::int64_t length) {
  return unpadded(join_parts_for_tp(part, 1), length);
}

at::Tensor read_sequence(const at::Tensor& part, std::int64_t length) {
  return unpadded(fused_allgather_for_tp(part, 1), length);
}

at::Tensor summed_sequence(const at::Tensor& addends) {
  return reduce_scatter_for_tp(padded(addends, 0), 1);
}

}  // namespace smp::tp
