// nn/linear.cpp: see smp/nn/linear.h.
#include "smp/nn/linear.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/linear.h>

namespace smp::nn {

at::Tensor LinearImpl::forward(const at::Tensor& input) {
  if (at::autocast::is_autocast_enabled(input.device().type())) {
    return at::linear(input, weight, bias);
  }
  return torch::nn::LinearImpl::forward(input);
}

}  // namespace smp::nn
