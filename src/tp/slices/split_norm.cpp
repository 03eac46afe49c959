// tp/slices/split_norm.cpp: see the header.
#include "tp/slices/split_norm.h"

#include <ATen/ATen.h>

#include "smp/tp/batch_primitives.h"
#include "tp/slices/sliced_norm.h"

namespace smp::tp {
namespace {

/// LibTorch norms no rows of float32 by weights of 16 bits.
at::Tensor as_wide_as(const at::Tensor& x, const at::Tensor& parameter) {
  const bool wider = x.element_size() > parameter.element_size();
  return wider ? parameter.to(x.scalar_type()) : parameter;
}

}  // namespace

SplitNormImpl::SplitNormImpl(Layout layout, std::int64_t size, double epsilon)
    : layout_(layout), size_(size), epsilon_(epsilon) {
  if (layout == Layout::kMemory) {
    weight = register_slice("weight", at::ones({size}), 0);
    bias = register_slice("bias", at::zeros({size}), 0);
  } else {
    weight = register_parameter("weight", at::ones({size}));
    bias = register_parameter("bias", at::zeros({size}));
  }
}

at::Tensor SplitNormImpl::forward(const at::Tensor& x) {
  const auto scale = as_wide_as(x, weight), shift = as_wide_as(x, bias);
  return layout_ == Layout::kMemory ? normalized_slices(x, scale, shift, epsilon_, size_)
                                    : at::layer_norm(x, {size_}, scale, shift, epsilon_);
}

at::Tensor SplitNormImpl::of_own_rows(const at::Tensor& x) {
  return at::layer_norm(x, {size_}, as_wide_as(x, used_in_part_for_tp(weight)),
                        as_wide_as(x, used_in_part_for_tp(bias)), epsilon_);
}

}  // namespace smp::tp
