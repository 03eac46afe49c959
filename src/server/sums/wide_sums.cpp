// server/sums/wide_sums.cpp: see the header.
#include "server/sums/wide_sums.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace smp::server {
namespace {

/// True if adding `gradient` to `sum` in its own type would round.
bool rounds(const at::Tensor& sum, const at::Tensor& gradient) {
  return sum.defined() && gradient.defined() && at::isReducedFloatingType(sum.scalar_type()) &&
         sum.layout() == at::kStrided && gradient.layout() == at::kStrided &&
         sum.sizes() == gradient.sizes() && sum.device() == gradient.device();
}

/// Returns `sum`, but for elements of which `grad` is no more the rounded value.
at::Tensor up_to_date(const at::Tensor& sum, const at::Tensor& grad) {
  const auto own = grad.to(at::kFloat);
  if (!sum.defined() || sum.sizes() != grad.sizes() || sum.device() != grad.device()) return own;
  return at::where(sum.to(grad.scalar_type()).eq(grad), sum, own);
}

}  // namespace

bool WideSums::add(ParameterNumber number, const at::Tensor& parameter,
                   const at::Tensor& gradient) {
  if (!active_ || at::GradMode::is_enabled() || !rounds(parameter.grad(), gradient)) return false;
  if (number >= sums_.size()) sums_.resize(number + 1);
  auto& grad = parameter.mutable_grad();
  auto sum = up_to_date(sums_[number], grad.detach());
  sum.add_(gradient);
  grad.detach().copy_(sum);
  sums_[number] = std::move(sum);
  return true;
}

}  // namespace smp::server
