// Attention between its projections: explicit scores, masks, and computed again by itself.
#include "smp/nn/attention_core.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "smp/error.h"
#include "smp/nn/grouped_query_attention.h"
#include "smp/recompute/activation_checkpointing.h"
#include "support/refusal.h"
#include "support/tensor_bytes.h"

namespace smp::nn {
namespace attention_core_test {

using at::Tensor;
using testing::HasSubstr;

constexpr std::int64_t kRows = 2, kHeads = 6, kQueries = 5, kKeys = 7, kSize = 4;

struct Inputs {
  explicit Inputs(std::int64_t key_heads, std::int64_t keys = kKeys)
      : query(made(kHeads, kQueries)), key(made(key_heads, keys)), value(made(key_heads, keys)) {}
  static Tensor made(std::int64_t heads, std::int64_t tokens) {
    return at::randn({kRows, heads, tokens, kSize}, at::kDouble).requires_grad_();
  }
  std::vector<Tensor> all() const { return {query, key, value}; }
  Tensor query, key, value;
};

/// @param added  to the scores, undefined for nothing
Tensor by_scores(const Inputs& in, const Tensor& added) {
  const auto groups = kHeads / in.key.size(1);
  const auto keys = in.key.repeat_interleave(groups, 1);
  auto scores = in.query.matmul(keys.transpose(-2, -1)) / std::sqrt(static_cast<double>(kSize));
  if (added.defined()) scores = scores + added;
  return scores.softmax(-1).matmul(in.value.repeat_interleave(groups, 1));
}

void expect_equal(const Tensor& ours, const Tensor& expected, const std::vector<Tensor>& inputs) {
  EXPECT_TRUE(torch::allclose(ours, expected, 1e-10, 1e-12));
  const auto weights = at::randn_like(expected);
  const auto a = torch::autograd::grad({(ours * weights).sum()}, inputs);
  const auto b = torch::autograd::grad({(expected * weights).sum()}, inputs);
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(torch::allclose(a[i], b[i], 1e-10, 1e-12)) << i;
  }
}

Tensor only_where(const Tensor& seen) {
  return at::zeros(seen.sizes(), at::kDouble)
      .masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
}

TEST(AttentionCore, EqualsExplicitScores) {
  torch::manual_seed(1);
  AttentionCore core;
  for (const std::int64_t key_heads : {1, 2, 3, 6}) {
    const Inputs in(key_heads);
    expect_equal(core(in.query, in.key, in.value), by_scores(in, {}), in.all());
    const auto causal = only_where(at::ones({kQueries, kKeys}, at::kBool).tril());
    expect_equal(core(in.query, in.key, in.value, Tensor(), true), by_scores(in, causal), in.all());
    const auto seen =
        at::rand({kRows, 1, kQueries, kKeys}).gt(0.4).index_fill(3, at::zeros(1, at::kLong), 1);
    expect_equal(core(in.query, in.key, in.value, seen), by_scores(in, only_where(seen)), in.all());
    const auto added = at::randn({1, 1, 1, kKeys}, at::kDouble);
    expect_equal(core(in.query, in.key, in.value, added), by_scores(in, added), in.all());
  }
}

TEST(AttentionCore, GivesAMaskItsGradient) {
  torch::manual_seed(2);
  AttentionCore core;
  for (const std::int64_t key_heads : {2, 6}) {
    const Inputs in(key_heads);
    const auto bias = at::randn({1, kHeads, kQueries, kKeys}, at::kDouble).requires_grad_();
    auto inputs = in.all();
    inputs.push_back(bias);
    expect_equal(core(in.query, in.key, in.value, bias), by_scores(in, bias), inputs);
  }
}

TEST(AttentionCore, DropsInTrainingOnly) {
  torch::manual_seed(3);
  AttentionCore core(0.5);
  const Inputs in(6);
  EXPECT_FALSE(core(in.query, in.key, in.value).equal(core(in.query, in.key, in.value)));
  core->eval();
  EXPECT_TRUE(torch::allclose(core(in.query, in.key, in.value), by_scores(in, {}), 1e-10, 1e-12));
}

TEST(AttentionCore, RefusesWhatDoesNotFit) {
  AttentionCore core;
  const Inputs in(6), other(4);
  const auto seen = at::ones({kQueries, kKeys}, at::kBool);
  EXPECT_THAT(refusal<UsageError>([&] { core(in.query, in.key, in.value, seen, true); }),
              HasSubstr("is_causal together with a mask"));
  EXPECT_THAT(refusal<UsageError>([&] { core(in.query, other.key, other.value); }),
              HasSubstr("K divides H"));
  EXPECT_THAT(refusal<UsageError>([&] { core(in.query, in.key, in.key.narrow(2, 0, 2)); }),
              HasSubstr("values [2, 6, 2, 4]"));
  EXPECT_THAT(refusal<UsageError>([] { AttentionCore(1.5); }), HasSubstr("must be in [0, 1]"));
}

/// With dropout the weights of all heads are kept several times over.
class ComputedAgain : public testing::Test {
 protected:
  static constexpr std::int64_t kTokens = 64, kWidth = 16;

  struct Run {
    std::vector<Tensor> gradients;
    std::int64_t kept = 0;  // bytes of a forward
  };
  static Run run(bool again) {
    torch::manual_seed(4);
    GroupedQueryAttention net(GroupedQueryAttentionOptions(kWidth, 4).kv_heads(2).dropout(0.3));
    if (again) set_activation_checkpointing(net->core);
    const auto x = at::randn({2, kTokens, kWidth}).requires_grad_();
    auto inputs = net->parameters();
    inputs.push_back(x);
    const auto before = support::live_tensor_bytes();
    torch::manual_seed(5);
    const auto loss = net(x).square().sum();
    Run result;
    result.kept = support::live_tensor_bytes() - before;
    result.gradients = torch::autograd::grad({loss}, inputs);
    return result;
  }
};

TEST_F(ComputedAgain, ByItselfKeepsNothingOfTheSquareOfTheSequence) {
  support::count_tensor_bytes();
  const auto kept = run(false), again = run(true);
  constexpr std::int64_t kWeights = 2 * 4 * kTokens * kTokens * 4;  // rows, heads, float32
  EXPECT_GT(kept.kept, 2 * kWeights);
  EXPECT_LT(again.kept, kWeights);
  ASSERT_EQ(kept.gradients.size(), again.gradients.size());
  for (std::size_t i = 0; i < kept.gradients.size(); ++i) {
    EXPECT_TRUE(kept.gradients[i].equal(again.gradients[i])) << i;
  }
}

}  // namespace attention_core_test
}  // namespace smp::nn
