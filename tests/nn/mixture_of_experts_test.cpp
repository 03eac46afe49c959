// A mixture of experts equals what is computed token by token; experts without tokens; what is
// refused.
#include "smp/nn/mixture_of_experts.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "smp/error.h"
#include "support/refusal.h"

namespace smp::nn {
namespace mixture_of_experts_test {

using testing::HasSubstr;

constexpr std::int64_t kWidth = 6, kTokens = 9;

MixtureOfExperts mixture_of(const MixtureOfExpertsOptions& options) {
  torch::manual_seed(2);
  MixtureOfExperts mixture(options);
  mixture->to(torch::kDouble);
  return mixture;
}

MixtureOfExpertsOptions options_of(std::int64_t experts, std::int64_t top_k) {
  return {GatedMlpOptions(kWidth, 4), experts, top_k};
}

at::Tensor tokens() {
  return at::sin(at::arange(kTokens * kWidth, at::kDouble) * 0.7).view({3, 3, kWidth});
}

/// One token after the other, with whole softmaxes.
std::pair<at::Tensor, at::Tensor> one_by_one(MixtureOfExperts& mixture, const at::Tensor& input) {
  const auto& options = mixture->options;
  std::vector<at::Tensor> rows;
  auto choices = at::zeros({options.experts()}, at::kDouble);
  auto means = at::zeros({options.experts()}, at::kDouble);
  for (const auto& token : input.view({-1, kWidth}).unbind()) {
    const auto probabilities = at::softmax(mixture->gate(token), -1);
    const auto order = probabilities.detach().argsort(-1, /*descending=*/true);
    auto sum = at::zeros({kWidth}, at::kDouble), weights = at::zeros({}, at::kDouble);
    for (std::int64_t i = 0; i < options.top_k(); ++i) {
      const auto expert = order[i].item<std::int64_t>();
      sum = sum + mixture->experts[static_cast<std::size_t>(expert)](token) * probabilities[expert];
      weights = weights + probabilities[expert];
      choices[expert] += 1.0 / kTokens;
    }
    if (options.normalized()) sum = sum / weights;
    if (mixture->shared_expert) sum = sum + mixture->shared_expert(token);
    rows.push_back(sum);
    means = means + probabilities / kTokens;
  }
  return {at::stack(rows).view(input.sizes()),
          (choices * means).sum() * static_cast<double>(options.experts())};
}

void expect_as_one_by_one(const MixtureOfExpertsOptions& options) {
  SCOPED_TRACE(testing::Message() << options.top_k() << " of " << options.experts());
  auto ours = mixture_of(options), reference = mixture_of(options);
  const auto x = tokens().requires_grad_(), y = tokens().requires_grad_();
  const auto [hidden, balance] = ours(x);
  const auto [expected, expected_balance] = one_by_one(reference, y);
  EXPECT_TRUE(at::allclose(hidden, expected, 1e-13, 1e-14));
  EXPECT_NEAR(balance.item<double>(), expected_balance.item<double>(), 1e-13);
  const auto weights = at::cos(at::arange(hidden.numel(), at::kDouble)).view(hidden.sizes());
  ((hidden * weights).sum() + 0.3 * balance).backward();
  ((expected * weights).sum() + 0.3 * expected_balance).backward();
  EXPECT_TRUE(at::allclose(x.grad(), y.grad(), 1e-12, 1e-13));
  const auto values = reference->named_parameters();
  for (const auto& item : ours->named_parameters()) {
    const auto& wanted = values[item.key()].grad();
    const auto zero = at::zeros_like(item.value());  // of an expert that no token chose
    EXPECT_TRUE(at::allclose(item.value().grad(), wanted.defined() ? wanted : zero, 1e-12, 1e-13))
        << item.key();
  }
}

TEST(MixtureOfExperts, EqualsWhatIsComputedTokenByToken) {
  for (const auto& [experts, top_k] :
       std::vector<std::pair<int, int>>{{4, 1}, {4, 2}, {5, 5}, {1, 1}, {20, 2}}) {
    expect_as_one_by_one(options_of(experts, top_k));
    expect_as_one_by_one(options_of(experts, top_k).normalized(false).shared_inner_width(3));
  }
}

/// All tokens choose one expert: the others compute nothing, and have gradients of zeros.
TEST(MixtureOfExperts, HasExpertsThatNobodyChooses) {
  auto mixture = mixture_of(options_of(3, 1));
  {
    const torch::NoGradGuard no_grad;
    mixture->gate->weight.zero_();
    mixture->gate->weight[1] += 1;
  }
  const auto x = at::ones({4, kWidth}, at::kDouble);
  const auto [hidden, balance] = mixture(x);
  EXPECT_GT(balance.item<double>(), 2.9);
  hidden.sum().backward();
  EXPECT_EQ(mixture->experts[0]->up_proj->weight.grad().count_nonzero().item<std::int64_t>(), 0);
  EXPECT_NE(mixture->experts[1]->up_proj->weight.grad().count_nonzero().item<std::int64_t>(), 0);
}

TEST(MixtureOfExperts, RefusesWhatDoesNotFit) {
  EXPECT_THAT(refusal<UsageError>([] { mixture_of(options_of(2, 3)); }),
              HasSubstr("top_k is 3 of 2 experts"));
  auto mixture = mixture_of(options_of(2, 1));
  EXPECT_THAT(refusal<UsageError>([&] {
                mixture(at::ones({2, 5}, at::kDouble));
              }),
              HasSubstr("input is [2, 5], expected [.., 6]"));
}

}  // namespace mixture_of_experts_test
}  // namespace smp::nn
