// Gradients of 16 bits that are added in float32.
#include "server/sums/wide_sums.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace smp::server {
namespace wide_sums_test {

at::Tensor parameter_of(at::ScalarType type) { return torch::zeros({2}, type).requires_grad_(); }

/// Adds ones; returns `.grad`.
at::Tensor sum_of_ones(WideSums& sums, const at::Tensor& parameter, int count) {
  const at::NoGradGuard no_grad;
  const auto one = torch::ones_like(parameter);
  for (int i = 0; i < count; ++i) {
    if (sums.add(0, parameter, one)) continue;
    if (parameter.grad().defined()) {
      parameter.mutable_grad().add_(one);
    } else {
      parameter.mutable_grad() = one.clone();
    }
  }
  return parameter.grad();
}

TEST(WideSums, DoNotStopWhereTheTypeDoes) {
  for (const bool wanted : {true, false}) {
    for (const auto type : {torch::kBFloat16, torch::kHalf}) {
      WideSums sums(wanted);
      sums.begin(3000);
      const auto grad = sum_of_ones(sums, parameter_of(type), 3000);
      EXPECT_EQ(grad.scalar_type(), type);
      const int stops_at = type == torch::kBFloat16 ? 256 : 2048;
      EXPECT_NEAR(grad[0].item<double>(), wanted ? 3000 : stops_at, wanted ? 8 : 0);
    }
  }
}

TEST(WideSums, GoOnFromWhatSomebodyWrote) {
  const at::NoGradGuard no_grad;
  WideSums sums(true);
  sums.begin(1000);
  const auto parameter = parameter_of(torch::kBFloat16);
  sum_of_ones(sums, parameter, 257);  // 257 is no bfloat16
  parameter.mutable_grad()[1] = 4;
  sum_of_ones(sums, parameter, 1);
  EXPECT_EQ(parameter.grad()[0].item<double>(), 258);
  EXPECT_EQ(parameter.grad()[1].item<double>(), 5);
  sums.clear();
  sums.begin(1000);
  sum_of_ones(sums, parameter, 1);  // from 258, as a step begins with what there is
  sum_of_ones(sums, parameter, 1);
  EXPECT_EQ(parameter.grad()[0].item<double>(), 260);
}

TEST(WideSums, LeaveOthersAlone) {
  const at::NoGradGuard no_grad;
  WideSums sums(true);
  sums.begin(2);
  const auto wide = parameter_of(torch::kFloat);
  wide.mutable_grad() = torch::ones_like(wide);
  EXPECT_FALSE(sums.add(0, wide, torch::ones_like(wide)));
  const auto first = parameter_of(torch::kBFloat16);
  EXPECT_FALSE(sums.add(1, first, torch::ones_like(first)));
  first.mutable_grad() = torch::ones_like(first);
  EXPECT_FALSE(sums.add(1, first, torch::ones_like(first).to_sparse()));
  const at::AutoGradMode graph(true);
  EXPECT_FALSE(sums.add(1, first, torch::ones_like(first)));
  sums.begin(1);
  const at::NoGradGuard again;
  EXPECT_FALSE(sums.add(1, first, torch::ones_like(first)));
}

}  // namespace wide_sums_test
}  // namespace smp::server
