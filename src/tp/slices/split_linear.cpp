// tp/slices/split_linear.cpp: see the header.
#include "tp/slices/split_linear.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace smp::tp {
namespace {

/// Makes the whole layer, because its values are drawn as a whole.
torch::nn::Linear whole_layer(std::int64_t in_features, std::int64_t out_features,
                              NormalDeviation deviation, bool has_bias) {
  torch::nn::Linear whole(torch::nn::LinearOptions(in_features, out_features).bias(has_bias));
  if (!deviation) return whole;
  const at::NoGradGuard no_grad;
  whole->weight.normal_(0, *deviation);
  if (has_bias) whole->bias.zero_();
  return whole;
}

}  // namespace

SplitLinearImpl::SplitLinearImpl(std::int64_t in_features, std::int64_t out_features,
                                 const LinearCut& cut, NormalDeviation deviation, bool has_bias)
    : SplitLinearImpl(*whole_layer(in_features, out_features, deviation, has_bias), cut,
                      Keep::kCopies) {}

SplitLinearImpl::SplitLinearImpl(const torch::nn::LinearImpl& whole, const LinearCut& cut,
                                 Keep keep) {
  using Weight = LinearCut::Weight;
  const auto dim = cut.weight == Weight::kWhole     ? std::nullopt
                   : cut.weight == Weight::kOutputs ? std::optional<std::int64_t>(0)
                                                    : std::optional<std::int64_t>(1);
  weight = hold("weight", whole.weight, dim, dim == 1 ? cut.in_unit : cut.out_unit, keep);
  bias = hold("bias", whole.bias, cut.bias ? std::optional<std::int64_t>(0) : std::nullopt,
              cut.out_unit, keep);
}

at::Tensor SplitLinearImpl::hold(const char* name, const at::Tensor& whole,
                                 std::optional<std::int64_t> dim, std::int64_t unit, Keep keep) {
  if (!whole.defined() || (!dim && keep == Keep::kAdopted)) return adopt(name, whole);
  if (!dim) return register_parameter(name, whole.detach());
  return keep == Keep::kAdopted ? adopt_padded(name, whole, *dim, unit)
                                : register_padded_slice(name, whole, *dim, unit);
}

/// Registers a slice, and has the tensor that it was cut from take its place and its size.
at::Tensor SplitLinearImpl::adopt_padded(const char* name, const at::Tensor& whole,
                                         std::int64_t dim, std::int64_t unit) {
  const auto values = whole.detach();
  whole.set_data(register_padded_slice(name, values, dim, unit).detach());
  parameters_[name] = whole;
  set_whole(name, values);
  return whole;
}

}  // namespace smp::tp
