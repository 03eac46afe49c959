// server/sums/wide_sums.cpp: see the header.
#include "server/sums/wide_sums.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "precision/wide_values.h"

namespace smp::server {
namespace {

/// True if adding `gradient` to `sum` in its own type would round.
bool rounds(const at::Tensor& sum, const at::Tensor& gradient) {
  return sum.defined() && gradient.defined() && at::isReducedFloatingType(sum.scalar_type()) &&
         sum.layout() == at::kStrided && gradient.layout() == at::kStrided &&
         sum.sizes() == gradient.sizes() && sum.device() == gradient.device();
}

}  // namespace

bool WideSums::add(ParameterNumber number, const at::Tensor& parameter,
                   const at::Tensor& gradient) {
  if (!active_ || at::GradMode::is_enabled() || !rounds(parameter.grad(), gradient)) return false;
  if (number >= sums_.size()) sums_.resize(number + 1);
  auto& grad = parameter.mutable_grad();
  auto sum = precision::wide_values(sums_[number], grad.detach());
  sum.add_(gradient);
  grad.detach().copy_(sum);
  sums_[number] = std::move(sum);
  return true;
}

}  // namespace smp::server
