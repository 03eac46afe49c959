#include "smp/nn/rotary_embedding.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <complex>
#include <tuple>

#include "smp/error.h"

namespace smp::nn {
namespace {

/// Elements i and i + D/2 are real and imaginary part of a number that is multiplied by
/// exp(i · position · theta^(-2i/D)).
TEST(RotaryEmbedding, TurnsPairsByTheirAngle) {
  torch::manual_seed(1);
  constexpr std::int64_t kSize = 6, kTokens = 5;
  RotaryEmbedding rotary(RotaryEmbeddingOptions(kSize).rope_theta(50));
  const auto x = torch::randn({1, 1, kTokens, kSize}, torch::kDouble);
  const auto turned = std::get<0>(rotary(x, x));
  for (std::int64_t token = 0; token < kTokens; ++token) {
    for (std::int64_t i = 0; i < kSize / 2; ++i) {
      const auto value = [&](const torch::Tensor& of, std::int64_t element) {
        return of[0][0][token][element].item<double>();
      };
      const double angle = static_cast<double>(token) * std::pow(50, -2.0 * i / kSize);
      const auto expected =
          std::complex(value(x, i), value(x, i + kSize / 2)) * std::polar(1.0, angle);
      EXPECT_NEAR(value(turned, i), expected.real(), 1e-6);
      EXPECT_NEAR(value(turned, i + kSize / 2), expected.imag(), 1e-6);
    }
  }
}

TEST(RotaryEmbedding, TakesPositionsOfRows) {
  torch::manual_seed(2);
  RotaryEmbedding rotary(RotaryEmbeddingOptions(4));
  const auto query = torch::randn({2, 3, 6, 4}), key = torch::randn({2, 1, 6, 4});
  const auto positions = torch::tensor({{0, 1, 2, 3, 4, 5}, {7, 8, 0, 1, 2, 9}});
  const auto [together, keys] = rotary(query, key, positions);
  EXPECT_EQ(keys.sizes(), key.sizes());
  for (int row = 0; row < 2; ++row) {
    const auto alone =
        std::get<0>(rotary(query.narrow(0, row, 1), key.narrow(0, row, 1), positions[row]));
    EXPECT_TRUE(torch::equal(together.narrow(0, row, 1), alone)) << row;
  }
  EXPECT_TRUE(torch::equal(std::get<0>(rotary(query, key))[0], together[0]));
}

/// Scores of a query and a key depend on their distance alone, in 16 bits as well: a table that was
/// rounded to bfloat16 would turn tokens far from the start by other angles.
TEST(RotaryEmbedding, AnglesAreNotRoundedWithTheModule) {
  RotaryEmbedding rotary(RotaryEmbeddingOptions(64));
  torch::nn::Sequential holder;
  holder->push_back(rotary);
  const auto before = rotary->frequencies(1);
  holder->to(torch::kBFloat16);
  EXPECT_TRUE(torch::equal(rotary->frequencies(1), before));
  EXPECT_EQ(before.scalar_type(), torch::kFloat);
  const auto ones = torch::ones({1, 1, 1, 64});
  const auto far = torch::tensor({4099});
  const auto exact = std::get<0>(rotary(ones, ones, far));
  const auto narrow =
      std::get<0>(rotary(ones.to(torch::kBFloat16), ones.to(torch::kBFloat16), far));
  EXPECT_EQ(narrow.scalar_type(), torch::kBFloat16);
  EXPECT_LE((narrow.to(torch::kFloat) - exact).abs().max().item<double>(), 0.02);
}

TEST(RotaryEmbedding, DynamicGoesByTheLongestPosition) {
  using enum RotaryScaling;
  RotaryEmbedding rotary(RotaryEmbeddingOptions(8).scaling(kDynamic).factor(2).max_positions(16));
  RotaryEmbedding plain(RotaryEmbeddingOptions(8));
  EXPECT_TRUE(torch::equal(rotary->frequencies(16), plain->frequencies(16)));
  EXPECT_FALSE(torch::equal(rotary->frequencies(17), plain->frequencies(17)));
  const auto x = torch::randn({1, 1, 2, 8});
  const auto near = torch::tensor({1, 2}), far = torch::tensor({1, 40});
  EXPECT_TRUE(torch::equal(std::get<0>(rotary(x, x, near)), std::get<0>(plain(x, x, near))));
  EXPECT_FALSE(torch::equal(std::get<0>(rotary(x, x, far)), std::get<0>(plain(x, x, far))));
  const auto last = torch::tensor({1, 15}), next = torch::tensor({1, 16});
  EXPECT_TRUE(torch::equal(std::get<0>(rotary(x, x, last)), std::get<0>(plain(x, x, last))));
  EXPECT_FALSE(torch::equal(std::get<0>(rotary(x, x, next)), std::get<0>(plain(x, x, next))));
}

TEST(RotaryEmbedding, TakesShapesAlone) {
  RotaryEmbedding rotary{RotaryEmbeddingOptions(8)};
  const auto heads = torch::empty({2, 3, 5, 8}, torch::kMeta);
  const auto [query, key] = rotary->forward(heads, heads.narrow(1, 0, 1));
  EXPECT_TRUE(query.is_meta());
  EXPECT_EQ(query.sizes(), (c10::IntArrayRef{2, 3, 5, 8}));
  EXPECT_EQ(key.sizes(), (c10::IntArrayRef{2, 1, 5, 8}));
}

TEST(RotaryEmbedding, RefusesWhatDoesNotFit) {
  using enum RotaryScaling;
  EXPECT_THROW(RotaryEmbedding(RotaryEmbeddingOptions(5)), UsageError);
  EXPECT_THROW(RotaryEmbedding(RotaryEmbeddingOptions(0)), UsageError);
  EXPECT_THROW(RotaryEmbedding(RotaryEmbeddingOptions(4).rope_theta(1)), UsageError);
  EXPECT_THROW(RotaryEmbedding(RotaryEmbeddingOptions(4).factor(0)), UsageError);
  EXPECT_THROW(RotaryEmbedding(RotaryEmbeddingOptions(4).scaling(kLlama3).high_freq_factor(1)),
               UsageError);
  EXPECT_THROW(RotaryEmbedding(RotaryEmbeddingOptions(2).scaling(kDynamic)), UsageError);
  RotaryEmbedding rotary(RotaryEmbeddingOptions(4));
  const auto x = torch::ones({1, 1, 3, 4});
  EXPECT_THROW(rotary(x, torch::ones({1, 1, 2, 4})), UsageError);
  EXPECT_THROW(rotary(x, x, torch::arange(4)), UsageError);
}

}  // namespace
}  // namespace smp::nn
