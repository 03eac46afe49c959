#include "smp/nn/grouped_query_attention.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "smp/error.h"

namespace smp::nn {
namespace {

GroupedQueryAttentionOptions small() {
  return GroupedQueryAttentionOptions(12, 6).kv_heads(2).rotary(RotaryEmbeddingOptions(4));
}

/// The same by explicit scores: [B, T, W] of `net`, with a mask [B or 1, T, T] of what is seen.
torch::Tensor by_scores(GroupedQueryAttention& net, const torch::Tensor& x,
                        const torch::Tensor& seen) {
  const auto& options = net->options;
  const auto size = options.rotary().head_dim();
  const auto heads = [&](const torch::Tensor& of) {
    return of.unflatten(-1, {-1, size}).transpose(1, 2);
  };
  RotaryEmbedding rotary(options.rotary());
  const auto [query, key] = rotary(heads(net->q_proj(x)), heads(net->k_proj(x)));
  const auto groups = options.heads() / options.kv_heads();
  const auto keys = key.repeat_interleave(groups, 1);
  const auto values = heads(net->v_proj(x)).repeat_interleave(groups, 1);
  auto scores = query.matmul(keys.transpose(-2, -1)) / std::sqrt(static_cast<double>(size));
  scores = scores.masked_fill(seen.logical_not().unsqueeze(1), -INFINITY);
  return net->o_proj(scores.softmax(-1).matmul(values).transpose(1, 2).flatten(2));
}

torch::Tensor causal(std::int64_t length, std::int64_t window) {
  auto seen = torch::zeros({1, length, length}, torch::kBool);
  for (std::int64_t i = 0; i < length; ++i) {
    for (std::int64_t j = std::max<std::int64_t>(0, i - window + 1); j <= i; ++j)
      seen[0][i][j] = true;
  }
  return seen;
}

void expect_equal(GroupedQueryAttention& net, const torch::Tensor& ours,
                  const torch::Tensor& expected) {
  EXPECT_TRUE(torch::allclose(ours, expected, 1e-10, 1e-12));
  const auto weights = torch::randn_like(expected);
  const auto parameters = net->parameters();
  const auto a = torch::autograd::grad({(ours * weights).sum()}, parameters);
  const auto b = torch::autograd::grad({(expected * weights).sum()}, parameters);
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(torch::allclose(a[i], b[i], 1e-10, 1e-12)) << i;
  }
}

TEST(GroupedQueryAttention, EqualsExplicitScores) {
  torch::manual_seed(1);
  const auto x = torch::randn({3, 7, 12}, torch::kDouble);
  for (const std::int64_t kv_heads : {1, 2, 3, 6}) {
    GroupedQueryAttention net(small().kv_heads(kv_heads).bias(true).output_bias(true));
    net->to(torch::kDouble);
    expect_equal(net, net(x), by_scores(net, x, causal(7, 7)));
  }
}

TEST(GroupedQueryAttention, SeesAWindow) {
  torch::manual_seed(2);
  const auto x = torch::randn({2, 9, 12}, torch::kDouble);
  for (const std::int64_t window : {1, 4, 8, 9, 20}) {
    GroupedQueryAttention net(small().window(window));
    net->to(torch::kDouble);
    expect_equal(net, net(x), by_scores(net, x, causal(9, window)));
  }
}

TEST(GroupedQueryAttention, NobodyElseSeesPadding) {
  torch::manual_seed(3);
  GroupedQueryAttention net(small());
  net->to(torch::kDouble);
  const auto x = torch::randn({2, 6, 12}, torch::kDouble);
  const auto tokens = torch::tensor({{0, 0, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 0}});
  const auto seen = causal(6, 6)
                        .logical_and(tokens.to(torch::kBool).unsqueeze(1))
                        .logical_or(torch::eye(6).to(torch::kBool));
  const auto ours = net->forward(x, {}, tokens);
  EXPECT_TRUE(ours.isfinite().all().item<bool>());
  expect_equal(net, ours, by_scores(net, x, seen));
}

/// One kernel takes a mask beside is_causal, another raises; dropout chooses between them.
TEST(GroupedQueryAttention, DropsWithEveryMask) {
  torch::manual_seed(4);
  const auto x = torch::randn({2, 6, 12});
  for (const bool narrow : {false, true}) {
    auto options = small().dropout(0.5);
    if (narrow) options.window(2);
    GroupedQueryAttention net(options);
    const auto first = net(x);
    EXPECT_FALSE(torch::equal(net(x), first));
    net->eval();
    EXPECT_TRUE(torch::equal(net(x), net(x)));
    EXPECT_TRUE(torch::allclose(net(x), by_scores(net, x, causal(6, narrow ? 2 : 6)), 1e-4, 1e-5));
  }
}

TEST(GroupedQueryAttention, HasTheNamesOfHuggingFaces) {
  GroupedQueryAttention net(small().qk_norm_eps(1e-5));
  std::vector<std::string> names;
  for (const auto& item : net->named_parameters()) names.push_back(item.key());
  EXPECT_EQ(names, (std::vector<std::string>{"q_proj.weight", "k_proj.weight", "v_proj.weight",
                                             "o_proj.weight", "q_norm.weight", "k_norm.weight"}));
  EXPECT_EQ(net->k_proj->weight.sizes(), (c10::IntArrayRef{8, 12}));
}

TEST(GroupedQueryAttention, RefusesWhatDoesNotFit) {
  EXPECT_THROW(GroupedQueryAttention(small().kv_heads(4)), UsageError);
  EXPECT_THROW(GroupedQueryAttention(small().kv_heads(0)), UsageError);
  EXPECT_THROW(GroupedQueryAttention(small().dropout(1)), UsageError);
  EXPECT_THROW(GroupedQueryAttention(small().window(0)), UsageError);
  GroupedQueryAttention net(small());
  EXPECT_THROW(net(torch::ones({2, 12})), UsageError);
  EXPECT_THROW(net->forward(torch::ones({1, 2, 12}), {}, torch::ones({1, 3})), UsageError);
}

}  // namespace
}  // namespace smp::nn
