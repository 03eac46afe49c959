#include "smp/nn/rms_norm.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "smp/error.h"

namespace smp::nn {
namespace {

TEST(RMSNorm, EqualsItsFormulaAndGradients) {
  torch::manual_seed(1);
  RMSNorm norm(RMSNormOptions(5).eps(0.1));
  norm->to(torch::kDouble);
  torch::nn::init::normal_(norm->weight);
  const auto x = torch::randn({2, 3, 5}, torch::kDouble).requires_grad_();
  const auto expected =
      torch::rms_norm(x, {5}, norm->weight, 0.1);  // the same in dtypes that are not widened
  EXPECT_TRUE(torch::allclose(norm(x), expected, 1e-12, 1e-12));
  const auto weights = torch::randn_like(expected);
  const auto ours = torch::autograd::grad({(norm(x) * weights).sum()}, {x, norm->weight});
  const auto theirs = torch::autograd::grad({(expected * weights).sum()}, {x, norm->weight});
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(torch::allclose(ours[i], theirs[i], 1e-12, 1e-12)) << i;
}

/// In float32 inside; Llama's weight is multiplied after the cast back, Gemma's before.
TEST(RMSNorm, CastsBackWhereItsModelDoes) {
  torch::manual_seed(2);
  const auto x = torch::randn({64, 128}).to(torch::kBFloat16);
  const auto wide = x.to(torch::kFloat);
  const auto normed = wide * torch::rsqrt(wide.square().mean(-1, true) + 1e-6);
  for (const bool gemma : {false, true}) {
    RMSNorm norm(RMSNormOptions(128).unit_offset(gemma));
    torch::nn::init::normal_(norm->weight);
    norm->to(torch::kBFloat16);
    const auto after = norm->weight * normed.to(torch::kBFloat16);
    const auto before = (normed * (norm->weight.to(torch::kFloat) + 1)).to(torch::kBFloat16);
    EXPECT_TRUE(torch::equal(norm(x), gemma ? before : after)) << gemma;
  }
}

TEST(RMSNorm, StartsAsTheIdentityOfItsKind) {
  EXPECT_TRUE(torch::equal(RMSNorm(3)->weight, torch::ones({3})));
  EXPECT_TRUE(
      torch::equal(RMSNorm(RMSNormOptions(3).unit_offset(true))->weight, torch::zeros({3})));
}

TEST(RMSNorm, RefusesWhatDoesNotFit) {
  EXPECT_THROW(RMSNorm(0), UsageError);
  EXPECT_THROW(RMSNorm(RMSNormOptions(3).eps(-1)), UsageError);
  RMSNorm norm(3);
  EXPECT_THROW(norm(torch::ones({3, 4})), UsageError);
  EXPECT_THROW(norm(torch::ones({})), UsageError);
}

}  // namespace
}  // namespace smp::nn
