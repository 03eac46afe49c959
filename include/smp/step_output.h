// smp/step_output.h: what a step's body returned, of all microbatches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "smp/detail/export.h"

namespace smp {

namespace detail {
SMP_API void require_outputs(bool here, std::size_t count);
SMP_API at::Tensor reduce_mean(const std::vector<at::Tensor>& outputs,
                               const std::vector<double>& weights);
SMP_API at::Tensor reduce_sum(const std::vector<at::Tensor>& outputs);
SMP_API at::Tensor concat(const std::vector<at::Tensor>& outputs, int axis);
SMP_API at::Tensor stack(const std::vector<at::Tensor>& outputs);
}  // namespace detail

/// The outputs of a step, one value per microbatch, in microbatch order, without autograd history.
/// All members but weights() throw UsageError on a rank that was not given the outputs
/// (StepOptions::broadcast_outputs), and where there are none: in a replica without a batch
/// (smp/join.h).
template <class T>
class StepOutput {
 public:
  using Mean = std::conditional_t<std::is_integral_v<T>, double, T>;
  using Sum = std::conditional_t<std::is_same_v<T, bool>, std::int64_t, T>;

  StepOutput() = default;
  StepOutput(std::vector<T> outputs, std::vector<double> weights, bool here)
      : outputs_(std::move(outputs)), weights_(std::move(weights)), here_(here) {}

  const std::vector<T>& outputs() const {
    detail::require_outputs(here_, outputs_.size());
    return outputs_;
  }
  /// Weights of the microbatches in backward and reduce_mean(): with StepOptions::loss "mean" they
  /// add up to 1, with "sum" each is 1.
  const std::vector<double>& weights() const { return weights_; }

  /// Returns the sum of weight times value, like the losses in backward: with "mean" the value for
  /// the whole batch. The mean of integers is a double. @throws UsageError  tensors of several
  /// shapes.
  Mean reduce_mean() const requires(std::is_same_v<T, at::Tensor> || std::is_arithmetic_v<T>) {
    if constexpr (std::is_arithmetic_v<T>) {
      double sum = 0;
      for (std::size_t i = 0; i < outputs().size(); ++i) sum += weights_[i] * outputs_[i];
      return static_cast<Mean>(sum);
    } else {
      return detail::reduce_mean(outputs(), weights_);
    }
  }
  /// Returns the sum without weights; of truth values, how many are true. @throws UsageError  as
  /// above.
  Sum reduce_sum() const requires(std::is_same_v<T, at::Tensor> || std::is_arithmetic_v<T>) {
    if constexpr (std::is_arithmetic_v<T>) {
      Sum sum{};
      for (const auto value : outputs()) sum += value;
      return sum;
    } else {
      return detail::reduce_sum(outputs());
    }
  }
  /// Returns the rows of all microbatches joined along `axis`. The other sizes must agree, and
  /// scalars have no rows: join those with stack(). @throws c10::Error  they do not fit.
  at::Tensor concat(int axis = 0) const requires std::is_same_v<T, at::Tensor> {
    return detail::concat(outputs(), axis);
  }
  /// Returns the outputs stacked as [microbatches, ...]; they must have one shape.
  /// @throws c10::Error  they have not.
  at::Tensor stack() const requires std::is_same_v<T, at::Tensor> {
    return detail::stack(outputs());
  }

 private:
  std::vector<T> outputs_;
  std::vector<double> weights_;
  bool here_ = true;
};

}  // namespace smp
