// tp/slices/sliced_state.cpp: see the header.
#include "tp/slices/sliced_state.h"

#include "smp/tp/batch_primitives.h"

#include "tp/group/tensor_parallel.h"
#include "tp/slices/block_layout.h"

namespace smp::tp {
namespace {

at::Tensor slices_of(const at::Tensor& own) {
  return own.defined() ? slices_of_batch_for_tp(own, -1) : own;
}

}  // namespace

TransformerState sliced(const TransformerState& own) {
  const auto batch = own.hidden.size(0);
  return {.hidden = slices_of(own.hidden),
          .mask = mask_of_all(own.mask, batch),
          .cross_states = slices_of(own.cross_states),
          .cross_mask = mask_of_all(own.cross_mask, batch),
          .sliced = true,
          .positions = rows_of_all(own.positions, batch),
          .position_bias = own.position_bias};
}

at::Tensor own_samples(const at::Tensor& slices) { return batch_of_slices_for_tp(slices, -1); }

at::Tensor mask_of_all(const at::Tensor& mask, std::int64_t batch) {
  const auto& group = TensorParallel::current();
  if (!mask.defined()) return mask;
  if (group.same_batch()) return whole_batch_for_tp(mask);
  if (mask.dim() < 4 || group.size() == 1) return mask;  // samples have no axis
  const auto all = whole_batch_for_tp(mask);
  return mask.size(0) == batch ? all : all.repeat_interleave(batch, 0);
}

}  // namespace smp::tp
