// tp/layers/distributed_linear.cpp: see the header.
#include "smp/tp/distributed_linear.h"

#include <ATen/ATen.h>
#include <torch/nn/init.h>

#include <cmath>
#include <ostream>

#include "base/check.h"
#include "nn/weight_casts.h"
#include "smp/tp/batch_primitives.h"
#include "tp/group/batch_of_one.h"

namespace smp::nn {

namespace {

/// Draws weights as torch::nn::Linear does; their bound depends on the length of rows only.
void draw_weight(const at::Tensor& rows, std::int64_t) {
  torch::nn::init::kaiming_uniform_(rows, std::sqrt(5));
}
at::Tensor drawn_bias(const torch::nn::LinearOptions& options) {
  const double bound = 1 / std::sqrt(static_cast<double>(options.in_features()));
  return at::empty({options.out_features()}).uniform_(-bound, bound);
}

}  // namespace

DistributedLinearImpl::DistributedLinearImpl(const torch::nn::LinearOptions& with,
                                             LinearSplit channels)
    : options(with), split(channels) {
  const bool outputs = split == LinearSplit::kOutputs;
  weight = register_drawn_slice("weight", {options.out_features(), options.in_features()},
                                outputs ? 0 : 1, draw_weight);
  if (!options.bias()) {
    bias = register_parameter("bias", at::Tensor(), false);
  } else {
    const auto whole = drawn_bias(options);
    bias = outputs ? register_slice("bias", whole, 0) : register_parameter("bias", whole);
  }
}

DistributedLinearImpl::DistributedLinearImpl(torch::nn::LinearImpl& original)
    : options(original.options), split(LinearSplit::kInputs) {
  weight = adopt_slice("weight", original.weight, 1);
  bias = adopt("bias", original.bias);
}

std::string DistributedLinearImpl::obstacle(const torch::nn::LinearImpl& original, int ranks) {
  if (original.options.in_features() % ranks == 0) return {};
  return base::concat("in_features ", original.options.in_features(), " cannot be divided by ",
                      ranks);
}

at::Tensor DistributedLinearImpl::forward(const at::Tensor& input) {
  SMP_REQUIRE(input.dim() >= 1 && input.size(-1) == options.in_features(),
              "DistributedLinear: input is ", input.sizes(), ", expected [.., ",
              options.in_features(), "]; check in_features");
  return tp::of_batch(input, /*row_dims=*/1, [this](const at::Tensor& batch) {
    return split == LinearSplit::kOutputs ? join_outputs(batch) : sum_of_inputs(batch);
  });
}

at::Tensor DistributedLinearImpl::sum_of_inputs(const at::Tensor& input) {
  const auto slices = slices_of_batch_for_tp(input, -1);
  const auto output = batch_of_sums_for_tp(at::linear(slices, nn::cast_of(weight)));
  return bias.defined() ? output + bias : output;
}

at::Tensor DistributedLinearImpl::join_outputs(const at::Tensor& input) {
  const auto all = whole_batch_for_tp(input);
  const auto cast = nn::cast_of(weight);
  return batch_of_slices_for_tp(
      bias.defined() ? at::linear(all, cast, bias) : at::linear(all, cast), -1);
}

void DistributedLinearImpl::pretty_print(std::ostream& stream) const {
  stream << "smp::nn::DistributedLinear(in_features=" << options.in_features()
         << ", out_features=" << options.out_features() << ", bias=" << std::boolalpha
         << options.bias() << (split == LinearSplit::kOutputs ? ", split=outputs)" : ")");
}

}  // namespace smp::nn
