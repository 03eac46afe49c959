// tp/slices/split_rms_norm.cpp: see the header.
#include "tp/slices/split_rms_norm.h"

#include <ATen/ATen.h>

#include "nn/accumulate_type.h"
#include "nn/root_mean_square.h"
#include "smp/tp/batch_primitives.h"
#include "smp/tp/primitives.h"

namespace smp::tp {

SplitRmsNormImpl::SplitRmsNormImpl(const nn::RMSNormImpl& whole, Layout layout, Keep keep)
    : layout_(layout), options_(whole.options) {
  const bool adopts = keep == Keep::kAdopted;
  if (layout == Layout::kMemory) {
    weight =
        adopts ? adopt_slice("weight", whole.weight, 0) : register_slice("weight", whole.weight, 0);
  } else {
    weight = adopts ? adopt("weight", whole.weight)
                    : register_parameter("weight", whole.weight.detach());
  }
}

at::Tensor SplitRmsNormImpl::forward(const at::Tensor& x) {
  switch (layout_) {
    case Layout::kMemory:
      return of_slices(x);
    case Layout::kSequence:
      return of_own_rows(x);
    case Layout::kSpeed:
      break;
  }
  return nn::root_mean_square_norm(x, weight, options_);
}

at::Tensor SplitRmsNormImpl::of_own_rows(const at::Tensor& x) {
  return nn::root_mean_square_norm(x, used_in_part_for_tp(weight), options_);
}

at::Tensor SplitRmsNormImpl::of_slices(const at::Tensor& slices) const {
  const auto wide = nn::in_accumulate_type(slices);
  // The sum goes to every rank, which uses it for other slices: gradients are summed as well.
  const auto squares =
      bwd_allreduce_for_tp(fwd_allreduce_for_tp(wide.square().sum(-1, /*keepdim=*/true)));
  return nn::divided_by_root(slices, wide, squares / static_cast<double>(options_.width()), weight,
                             options_);
}

}  // namespace smp::tp
