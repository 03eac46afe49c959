// tp/slices/split_norm.cpp: see the header.
#include "tp/slices/split_norm.h"

#include <ATen/ATen.h>

#include "tp/slices/sliced_norm.h"

namespace smp::tp {

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
  return layout_ == Layout::kMemory ? normalized_slices(x, weight, bias, epsilon_, size_)
                                    : at::layer_norm(x, {size_}, weight, bias, epsilon_);
}

}  // namespace smp::tp
