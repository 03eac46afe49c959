// nn/linear.cpp: see smp/nn/linear.h.
#include "smp/nn/linear.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <limits>

namespace smp::nn {
namespace {

/// The weight in the type of autocast, from its cache if it is trained.
at::Tensor cast_weight(const at::Tensor& weight, c10::DeviceType device) {
  auto cast = at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), weight, device);
  if (cast.is_same(weight) || cast.grad_fn() == nullptr) return cast;
  // As for AccumulateGrad. By its age, the node of a copy that an earlier microbatch made would be
  // the last of a backward, and the gradients of all copies would wait for it.
  cast.grad_fn()->set_sequence_nr(std::numeric_limits<std::uint64_t>::max());
  return cast;
}

/// False on devices that autocast does not know, as meta.
bool is_autocast_on(c10::DeviceType device) {
  return at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device);
}

}  // namespace

at::Tensor LinearImpl::forward(const at::Tensor& input) {
  const auto device = input.device().type();
  if (!is_autocast_on(device)) return torch::nn::LinearImpl::forward(input);
  return at::linear(input, cast_weight(weight, device), bias);
}

/// LibTorch's makes one of its own class.
std::shared_ptr<torch::nn::Module> LinearImpl::clone(
    const std::optional<torch::Device>& device) const {
  const auto plain =
      std::dynamic_pointer_cast<torch::nn::LinearImpl>(torch::nn::LinearImpl::clone(device));
  return std::shared_ptr<LinearImpl>(new LinearImpl(*plain));
}

}  // namespace smp::nn
