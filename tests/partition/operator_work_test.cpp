// What operators are said to cost, against closed formulas.
#include <gtest/gtest.h>
#include <torch/types.h>

#include "partition/traced_run.h"

namespace smp::partitioning {
namespace {

TEST(OperatorWork, OfALinearLayerIsTwoFlopsAnElementOfTheProduct) {
  const auto weight = torch::ones({5, 7});
  const auto bias = torch::ones({5});
  const auto flat = torch::ones({3, 7});
  const auto deep = torch::ones({2, 3, 7});
  EXPECT_EQ(meter([&] { torch::linear(flat, weight, bias); }).flops, 2.0 * 3 * 7 * 5);
  EXPECT_EQ(meter([&] { torch::linear(flat, weight); }).flops, 2.0 * 3 * 7 * 5);
  EXPECT_EQ(meter([&] { torch::linear(deep, weight, bias); }).flops, 2.0 * 6 * 7 * 5);
}

TEST(OperatorWork, OfAttentionIsTwoProducts) {
  const auto query = torch::ones({2, 3, 4, 8});
  const auto key = torch::ones({2, 3, 6, 8});
  const auto value = torch::ones({2, 3, 6, 5});
  EXPECT_EQ(meter([&] { at::scaled_dot_product_attention(query, key, value); }).flops,
            2.0 * 2 * 3 * 4 * 6 * (8 + 5));
  EXPECT_EQ(meter([&] { torch::matmul(torch::matmul(query, key.transpose(2, 3)), value); }).flops,
            2.0 * 2 * 3 * 4 * 6 * (8 + 5));
}

TEST(OperatorWork, OfAConvolutionIsAKernelAnOutput) {
  const auto image = torch::ones({2, 4, 9, 9});
  const std::vector<std::int64_t> ones{1, 1}, zeros{0, 0};
  EXPECT_EQ(meter([&] {
              torch::conv2d(image, torch::ones({6, 4, 3, 3}));
            }).flops,
            2.0 * 2 * 6 * 7 * 7 * 4 * 3 * 3);
  EXPECT_EQ(meter([&] {
              at::conv2d(image, torch::ones({6, 2, 3, 3}), {}, ones, zeros, ones, /*groups=*/2);
            }).flops,
            2.0 * 2 * 6 * 7 * 7 * 2 * 3 * 3);
  EXPECT_EQ(meter([&] {
              torch::conv_transpose2d(image, torch::ones({4, 6, 3, 3}));
            }).flops,
            2.0 * 2 * 4 * 9 * 9 * 6 * 3 * 3);
}

TEST(OperatorWork, OfALookUpDoesNotDependOnTheTable) {
  const auto rows = torch::zeros({4}, torch::kLong);
  const auto small = torch::ones({10, 8});
  const auto large = torch::ones({10000, 8});
  EXPECT_EQ(meter([&] { torch::embedding(small, rows); }).seconds,
            meter([&] { torch::embedding(large, rows); }).seconds);
}

TEST(OperatorWork, OfAViewIsNothing) {
  const auto x = torch::ones({4, 6});
  EXPECT_EQ(meter([&] { x.view({24}).slice(0, 2, 4).unsqueeze(0).expand({3, 2}); }).seconds, 0);
  EXPECT_GT(meter([&] { x.add(1); }).seconds, 0);
}

}  // namespace
}  // namespace smp::partitioning
