// nn/linear.cpp: see smp/nn/linear.h.
#include "smp/nn/linear.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/linear.h>

namespace smp::nn {
namespace {

/// False on devices that autocast does not know, as meta.
bool is_autocast_on(c10::DeviceType device) {
  return at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device);
}

}  // namespace

at::Tensor LinearImpl::forward(const at::Tensor& input) {
  const auto device = input.device().type();
  if (!is_autocast_on(device)) return torch::nn::LinearImpl::forward(input);
  return at::linear(input, weight, bias);
}

/// LibTorch's makes one of its own class.
std::shared_ptr<torch::nn::Module> LinearImpl::clone(
    const std::optional<torch::Device>& device) const {
  const auto plain =
      std::dynamic_pointer_cast<torch::nn::LinearImpl>(torch::nn::LinearImpl::clone(device));
  return std::shared_ptr<LinearImpl>(new LinearImpl(*plain));
}

}  // namespace smp::nn
