// tp/sliced_state.cpp: see the header.
#include "tp/sliced_state.h"

#include "smp/tp/primitives.h"

namespace smp::tp {
namespace {

at::Tensor slices_of(const at::Tensor& own) {
  return own.defined() ? scatter_and_merge_for_tp(own, -1, 0) : own;
}

}  // namespace

TransformerState sliced(const TransformerState& own) {
  const auto batch = own.hidden.size(0);
  return {slices_of(own.hidden), mask_of_all(own.mask, batch), slices_of(own.cross_states),
          mask_of_all(own.cross_mask, batch), /*sliced=*/true};
}

at::Tensor own_samples(const at::Tensor& slices) { return scatter_and_merge_for_tp(slices, 0, -1); }

at::Tensor mask_of_all(const at::Tensor& mask, std::int64_t batch) {
  return mask.defined() && mask.size(0) == batch ? fused_allgather_for_tp(mask, 0) : mask;
}

}  // namespace smp::tp
