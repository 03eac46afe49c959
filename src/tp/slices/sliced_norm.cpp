// tp/slices/sliced_norm.cpp: what needs all slices of a row are two numbers in forward, and two in
// backward. Operators of their own keep nothing but the slices.
#include "tp/slices/sliced_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

#include "smp/tp/primitives.h"

namespace smp::tp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Returns the tensor in double precision; itself if it is of doubles.
at::Tensor exact(const at::Tensor& tensor) { return tensor.to(at::kDouble); }

/// Computes sum and sum of squares of each row: [.., n] -> [.., 2] doubles.
struct RowSums : torch::autograd::Function<RowSums> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& slices) {
    context->save_for_backward({slices});
    const auto values = exact(slices);
    return at::stack({values.sum(-1), values.square().sum(-1)}, -1);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto slices = context->get_saved_variables()[0];
    const auto of_sum = gradients[0].narrow(-1, 0, 1), of_squares = gradients[0].narrow(-1, 1, 1);
    return {(exact(slices) * (2 * of_squares)).add_(of_sum).to(slices.scalar_type())};
  }
};

/// Returns the tensor as an optional argument of an operator, which takes no undefined ones.
std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

/// Computes (x - mean) / deviation * weight + bias, with mean and 1 / deviation [.., 1] of whole
/// rows.
struct Applied : torch::autograd::Function<Applied> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& slices,
                            const at::Tensor& mean, const at::Tensor& scale,
                            const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias) {
    context->save_for_backward({slices, mean, scale, weight.value_or(at::Tensor())});
    auto rows = (exact(slices) - mean).mul_(scale);
    if (weight) rows.mul_(*weight).add_(*bias);
    return rows.to(slices.scalar_type());
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto &slices = saved[0], &scale = saved[2], &weight = saved[3];
    const auto centered = exact(slices) - saved[1];
    const auto given = exact(gradients[0]);
    const auto inner = weight.defined() ? given * weight : given;
    const auto of_scale = (inner * centered).sum(-1, /*keepdim=*/true);
    const auto of_rows = inner * scale;
    const auto of_mean = -of_rows.sum(-1, /*keepdim=*/true);
    variable_list results{of_rows.to(slices.scalar_type()), of_mean, of_scale, {}, {}};
    if (!weight.defined()) return results;
    results[3] = over_rows(given * centered * scale).to(weight.scalar_type());
    results[4] = over_rows(given).to(weight.scalar_type());
    return results;
  }
  static at::Tensor over_rows(const at::Tensor& values) {
    return values.dim() == 1 ? values : values.flatten(0, -2).sum(0);
  }
};

}  // namespace

at::Tensor normalized_slices(const at::Tensor& slices, const at::Tensor& weight,
                             const at::Tensor& bias, double epsilon, std::int64_t size) {
  // The sum goes to every rank, which uses it for other slices: gradients are summed as well.
  const auto sums = bwd_allreduce_for_tp(fwd_allreduce_for_tp(RowSums::apply(slices)));
  const auto means = sums / static_cast<double>(size);
  const auto mean = means.narrow(-1, 0, 1);
  const auto variance = (means.narrow(-1, 1, 1) - mean.square()).clamp_min(0);
  return Applied::apply(slices, mean, at::rsqrt(variance + epsilon), if_defined(weight),
                        if_defined(bias));
}

}  // namespace smp::tp
