// nn/linear.cpp: see smp/nn/linear.h.
#include "smp/nn/linear.h"

#include <ATen/ops/linear.h>

#include "nn/weight_casts.h"

namespace smp::nn {

at::Tensor LinearImpl::forward(const at::Tensor& input) {
  const auto cast = cast_of(weight);
  if (cast.is_same(weight)) return torch::nn::LinearImpl::forward(input);
  return at::linear(input, cast, bias);
}

/// LibTorch's makes one of its own class.
std::shared_ptr<torch::nn::Module> LinearImpl::clone(
    const std::optional<torch::Device>& device) const {
  const auto plain =
      std::dynamic_pointer_cast<torch::nn::LinearImpl>(torch::nn::LinearImpl::clone(device));
  return std::shared_ptr<LinearImpl>(new LinearImpl(*plain));
}

}  // namespace smp::nn
