// tp/split_linear.cpp: see the header.
#include "tp/split_linear.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace smp::tp {
namespace {

/// Made as a whole, because its values are drawn as a whole.
torch::nn::Linear whole_layer(std::int64_t in_features, std::int64_t out_features,
                              NormalDeviation deviation) {
  torch::nn::Linear whole(in_features, out_features);
  if (!deviation) return whole;
  const at::NoGradGuard no_grad;
  whole->weight.normal_(0, *deviation);
  whole->bias.zero_();
  return whole;
}

}  // namespace

OutputSplitLinearImpl::OutputSplitLinearImpl(std::int64_t in_features, std::int64_t out_features,
                                             NormalDeviation deviation) {
  const auto whole = whole_layer(in_features, out_features, deviation);
  weight = register_slice("weight", whole->weight, 0);
  bias = register_slice("bias", whole->bias, 0);
}

at::Tensor OutputSplitLinearImpl::forward(const at::Tensor& input) {
  return at::linear(input, weight, bias);
}

InputSplitLinearImpl::InputSplitLinearImpl(std::int64_t in_features, std::int64_t out_features,
                                           NormalDeviation deviation) {
  const auto whole = whole_layer(in_features, out_features, deviation);
  weight = register_slice("weight", whole->weight, 1);
  bias = register_parameter("bias", whole->bias.detach());
}

at::Tensor InputSplitLinearImpl::forward(const at::Tensor& input) {
  return at::linear(input, weight);
}

}  // namespace smp::tp
