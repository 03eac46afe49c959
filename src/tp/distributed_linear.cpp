// tp/distributed_linear.cpp: see the header.
#include "smp/tp/distributed_linear.h"

#include <ATen/ATen.h>
#include <ostream>

#include "base/check.h"
#include "smp/tp/batch_primitives.h"

namespace smp::nn {

/// The whole layer is made first, because its values are drawn as a whole.
DistributedLinearImpl::DistributedLinearImpl(const torch::nn::LinearOptions& with,
                                             LinearSplit channels)
    : options(with), split(channels) {
  const torch::nn::LinearImpl whole(options);
  const bool outputs = split == LinearSplit::kOutputs;
  weight = register_slice("weight", whole.weight, outputs ? 0 : 1);
  if (!options.bias()) {
    bias = register_parameter("bias", at::Tensor(), false);
  } else {
    bias = outputs ? register_slice("bias", whole.bias, 0)
                   : register_parameter("bias", whole.bias.detach());
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
  SMP_REQUIRE(input.dim() >= 2 && input.size(-1) == options.in_features(),
              "DistributedLinear: input is ", input.sizes(), ", expected [batch, .., ",
              options.in_features(), "]; check in_features, or add a dimension for the batch");
  return split == LinearSplit::kOutputs ? join_outputs(input) : sum_of_inputs(input);
}

at::Tensor DistributedLinearImpl::sum_of_inputs(const at::Tensor& input) {
  const auto slices = slices_of_batch_for_tp(input, -1);
  const auto output = batch_of_sums_for_tp(at::linear(slices, weight));
  return bias.defined() ? output + bias : output;
}

at::Tensor DistributedLinearImpl::join_outputs(const at::Tensor& input) {
  const auto all = whole_batch_for_tp(input);
  return batch_of_slices_for_tp(
      bias.defined() ? at::linear(all, weight, bias) : at::linear(all, weight), -1);
}

void DistributedLinearImpl::pretty_print(std::ostream& stream) const {
  stream << "smp::nn::DistributedLinear(in_features=" << options.in_features()
         << ", out_features=" << options.out_features() << ", bias=" << std::boolalpha
         << options.bias() << (split == LinearSplit::kOutputs ? ", split=outputs)" : ")");
}

}  // namespace smp::nn
