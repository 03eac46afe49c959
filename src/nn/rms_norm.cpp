// nn/rms_norm.cpp: see smp/nn/rms_norm.h.
#include "smp/nn/rms_norm.h"

#include <ATen/ATen.h>

#include <ios>

#include "base/check.h"
#include "nn/accumulate_type.h"
#include "nn/root_mean_square.h"

namespace smp::nn {

RMSNormImpl::RMSNormImpl(const RMSNormOptions& with) : options(with) {
  SMP_REQUIRE(options.width() > 0, "RMSNorm: width is ", options.width(), ", must be at least 1");
  SMP_REQUIRE(options.eps() >= 0, "RMSNorm: eps is ", options.eps(), ", must not be negative");
  reset();
}

void RMSNormImpl::reset() {
  const auto sizes = {options.width()};
  weight = register_parameter("weight", options.unit_offset() ? at::zeros(sizes) : at::ones(sizes));
}

void RMSNormImpl::pretty_print(std::ostream& stream) const {
  stream << "smp::nn::RMSNorm(" << options.width() << ", eps=" << options.eps()
         << ", unit_offset=" << std::boolalpha << options.unit_offset() << ")";
}

at::Tensor divided_by_root(const at::Tensor& input, const at::Tensor& wide,
                           const at::Tensor& mean_square, const at::Tensor& weight,
                           const RMSNormOptions& options) {
  const auto normed = wide * at::rsqrt(mean_square + options.eps());
  if (!options.unit_offset()) return weight * normed.to(input.scalar_type());
  return (normed * (1 + in_accumulate_type(weight))).to(input.scalar_type());
}

at::Tensor root_mean_square_norm(const at::Tensor& input, const at::Tensor& weight,
                                 const RMSNormOptions& options) {
  const auto wide = in_accumulate_type(input);
  return divided_by_root(input, wide, wide.square().mean(-1, /*keepdim=*/true), weight, options);
}

at::Tensor RMSNormImpl::forward(const at::Tensor& input) {
  SMP_REQUIRE(input.dim() > 0 && input.size(-1) == options.width(), "RMSNorm: input is ",
              input.sizes(), ", expected [.., ", options.width(), "]; check the width");
  return root_mean_square_norm(input, weight, options);
}

}  // namespace smp::nn
