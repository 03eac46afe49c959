// Which casts of weights are made once, and that they are those of autocast.
#include "nn/weight_casts.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <optional>

namespace smp::nn {
namespace weight_casts_test {

using at::Tensor;

class WeightCastsTest : public testing::Test {
 protected:
  void SetUp() override { at::autocast::set_autocast_enabled(at::kCPU, true); }
  void TearDown() override {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }

  /// A leaf that is a part of another tensor, as weights are that lie side by side.
  static Tensor part_of_a_flat_tensor() {
    const at::NoGradGuard no_grad;
    return torch::randn({20}).narrow(0, 4, 12).view({3, 4}).requires_grad_();
  }
};

TEST_F(WeightCastsTest, AreNoneWithoutAutocast) {
  at::autocast::set_autocast_enabled(at::kCPU, false);
  const WeightCastsScope kept;
  const auto weight = torch::randn({3, 4});
  EXPECT_TRUE(cast_of(weight).is_same(weight));
}

TEST_F(WeightCastsTest, LeaveOtherTypesAsTheyAre) {
  const WeightCastsScope kept;
  for (const auto type : {at::kDouble, at::kBFloat16, at::kLong}) {
    const auto weight = torch::ones({3}, type);
    EXPECT_TRUE(cast_of(weight).is_same(weight));
  }
  const auto meta = torch::ones({3}, at::kMeta);
  EXPECT_TRUE(cast_of(meta).is_same(meta));
}

TEST_F(WeightCastsTest, AreMadeOnceWhileOneLives) {
  const auto trained = torch::randn({3, 4}).requires_grad_(), frozen = torch::randn({3, 4});
  const auto part = part_of_a_flat_tensor();
  ASSERT_TRUE(part.is_view() && part.is_leaf());  // what LibTorch keeps no cast of
  EXPECT_FALSE(cast_of(frozen).is_same(cast_of(frozen)));
  std::optional<WeightCastsScope> kept(std::in_place);
  for (const auto& weight : {trained, frozen, part}) {
    const auto cast = cast_of(weight);
    EXPECT_TRUE(torch::equal(cast, weight.detach().to(at::kBFloat16)));
    EXPECT_TRUE(cast_of(weight).is_same(cast));
  }
  const auto before = cast_of(frozen);
  kept.reset();
  EXPECT_FALSE(cast_of(frozen).is_same(before));
}

TEST_F(WeightCastsTest, AreMadeAgainForValuesThatChanged) {
  const WeightCastsScope kept;
  auto frozen = torch::zeros({2});
  EXPECT_EQ(cast_of(frozen).sum().item<float>(), 0);
  frozen.add_(1);
  EXPECT_EQ(cast_of(frozen).sum().item<float>(), 2);
  frozen.set_data(torch::full({2}, 3.0));
  EXPECT_EQ(cast_of(frozen).sum().item<float>(), 6);
}

TEST_F(WeightCastsTest, PassGradientsOn) {
  const WeightCastsScope kept;
  for (const auto& weight : {part_of_a_flat_tensor(), torch::randn({3, 4}).requires_grad_()}) {
    {
      const at::NoGradGuard no_grad;  // who casts first does not decide
      cast_of(weight);
    }
    for (int microbatch = 0; microbatch < 2; ++microbatch) (cast_of(weight) * 2).sum().backward();
    ASSERT_TRUE(weight.grad().defined());
    EXPECT_TRUE(torch::equal(weight.grad(), torch::full({3, 4}, 4.0)));
  }
}

// What was frozen may be trained next, and the other way round.
TEST_F(WeightCastsTest, FollowWhoIsTrained) {
  const WeightCastsScope kept;
  auto weight = torch::randn({3, 4});
  EXPECT_FALSE(cast_of(weight).requires_grad());
  weight.requires_grad_();
  EXPECT_TRUE(cast_of(weight).requires_grad());
  weight.set_requires_grad(false);
  EXPECT_FALSE(cast_of(weight).requires_grad());
}

TEST_F(WeightCastsTest, OfInferenceAreForInferenceOnly) {
  const WeightCastsScope kept;
  const auto frozen = torch::randn({3, 4});
  {
    const c10::InferenceMode inference;
    cast_of(frozen);
  }
  const auto x = torch::ones({4, 4}).requires_grad_();
  at::matmul(cast_of(frozen), x).sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

}  // namespace weight_casts_test
}  // namespace smp::nn
