// Running modules on shapes alone: nothing is allocated, drawn or recorded.
#include "deferred/meta_scope.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fiber/scheduler.h"
#include "smp/error.h"

namespace smp::deferred {
namespace {

torch::Tensor default_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

TEST(MetaScope, RunsAForwardWithoutValues) {
  const auto generator = default_state();
  {
    MetaScope meta;
    torch::nn::TransformerEncoderLayer layer(torch::nn::TransformerEncoderLayerOptions(16, 2));
    const auto output = layer(torch::empty({5, 3, 16}));
    EXPECT_TRUE(output.is_meta());
    EXPECT_EQ(output.sizes(), at::IntArrayRef({5, 3, 16}));
    torch::randperm(5);
  }
  EXPECT_TRUE(torch::equal(generator, default_state()));
}

TEST(MetaScope, KeepsFactoriesInsideForwardOnMeta) {
  MetaScope meta;
  const auto weight = torch::empty({7, 4});
  const auto position = torch::arange(5);
  const auto bias = torch::embedding(weight, position.unsqueeze(0) - position.unsqueeze(1) + 4);
  EXPECT_EQ(bias.sizes(), at::IntArrayRef({5, 5, 4}));
  EXPECT_TRUE(torch::zeros_like(bias).is_meta());
}

TEST(MetaScope, TakesRealTensorsByTheirShape) {
  const auto ids = torch::tensor({1, 2, 3});
  const auto data = torch::ones({3, 4});
  MetaScope meta;
  const auto table = torch::empty({7, 4});
  EXPECT_TRUE((torch::embedding(table, ids) + data).is_meta());
  EXPECT_EQ(table.index({torch::tensor({0, 2})}).sizes(), at::IntArrayRef({2, 4}));
  EXPECT_TRUE((data * 2).is_cpu());
  EXPECT_TRUE(table.to(torch::kCPU, torch::kDouble).is_meta());
}

TEST(MetaScope, KnowsOperatorsThatLibTorchHasNoShapesFor) {
  MetaScope meta;
  torch::nn::Embedding table(10, 4);
  const auto rows = table(torch::zeros({2, 3}, torch::kLong));
  EXPECT_EQ(rows.sizes(), at::IntArrayRef({2, 3, 4}));
  EXPECT_TRUE(rows.requires_grad());
  const auto mask = torch::rand({2, 3}) > 0.5;
  EXPECT_EQ(torch::where(mask.unsqueeze(-1), rows, rows * 2).sizes(), rows.sizes());
  EXPECT_EQ(rows.index_put({torch::tensor({1})}, torch::ones({4})).sizes(), rows.sizes());
  EXPECT_EQ(torch::dropout(rows, 0.5, /*train=*/true).sizes(), rows.sizes());
  EXPECT_EQ(torch::nn::BatchNorm1d(3)(rows).sizes(), rows.sizes());
  EXPECT_EQ(torch::nn::Conv1d(3, 5, 2)(rows).sizes(), at::IntArrayRef({2, 5, 3}));
  auto upwards =
      torch::nn::ConvTranspose1d(torch::nn::ConvTranspose1dOptions(3, 5, 2).stride(2).groups(1));
  EXPECT_EQ(upwards(rows).sizes(), at::IntArrayRef({2, 5, 8}));
  EXPECT_EQ(torch::nn::functional::cross_entropy(rows.flatten(0, 1), torch::arange(6)).dim(), 0);
  const auto [states, last] = torch::nn::LSTM(4, 8)(rows);
  EXPECT_EQ(states.sizes(), at::IntArrayRef({2, 3, 8}));
  EXPECT_EQ(torch::scaled_dot_product_attention(rows, rows, rows).sizes(), rows.sizes());
  EXPECT_TRUE(torch::randperm(5).is_meta());
  const auto selected = rows.masked_select(mask.unsqueeze(-1));  // as if all were
  EXPECT_EQ(selected.sizes(), at::IntArrayRef({24}));
  EXPECT_TRUE(selected.requires_grad());
  EXPECT_THROW(mask.nonzero(), c10::Error);
}

/// Scores of 64 heads over 16,384 tokens are 4 TB for these rows: no operator may be run on zeros.
TEST(MetaScope, AttentionOverLongTextTakesNoMemory) {
  MetaScope meta;
  const auto heads = torch::rand({64, 64, 16384, 8});
  const auto attended = torch::scaled_dot_product_attention(heads, heads, heads, {}, 0, true);
  EXPECT_EQ(attended.sizes(), heads.sizes());
  auto out = torch::empty({1});
  torch::where_out(out, torch::ones({3, 1}, torch::kBool), torch::ones({4}), torch::ones({1}));
  EXPECT_EQ(out.sizes(), at::IntArrayRef({3, 4}));
}

TEST(MetaScope, HasNoValueToGive) {
  MetaScope meta;
  EXPECT_THROW(torch::ones({1}).item<float>(), c10::NotImplementedError);
}

TEST(MetaScope, GivesTheValueThatItWasTold) {
  int asked = 0;
  MetaScope meta([&] {
    ++asked;
    return 2.5;
  });
  EXPECT_EQ(torch::ones({1}).item<float>(), 2.5);
  EXPECT_EQ(torch::ones({}, torch::kLong).item<std::int64_t>(), 2);
  EXPECT_TRUE((torch::ones({1}) > 3).item<bool>());
  EXPECT_TRUE(torch::ones({1}).is_nonzero());
  EXPECT_EQ(asked, 4);
  EXPECT_THROW(torch::ones({2}).item<float>(), UnsupportedError);
}

/// All there could be, or as little.
TEST(MetaScope, SaysHowMuchThereIs) {
  for (const bool all : {true, false}) {
    MetaScope meta([all] { return all ? 1. : 0.; });
    const auto rows = torch::rand({2, 3, 4}).requires_grad_();
    const auto mask = torch::rand({2, 3}) > 0.5;
    EXPECT_EQ(mask.nonzero().sizes(), at::IntArrayRef({all ? 6 : 0, 2}));
    const auto picked = rows.index({mask});
    EXPECT_EQ(picked.sizes(), at::IntArrayRef({all ? 6 : 0, 4}));
    EXPECT_TRUE(picked.requires_grad());
    EXPECT_EQ(rows.index_put({mask}, picked * 2).sizes(), rows.sizes());
    EXPECT_EQ(mask.masked_select(mask).numel(), mask.nonzero().size(0));
    EXPECT_EQ(rows.index({torch::indexing::None, mask[0][0]}).dim(), 5) << "a mask of one element";
    EXPECT_EQ(rows.index({torch::zeros({5}, torch::kLong)}).size(0), 5) << "no mask";
    const auto [unique, where, counts] = at::_unique2(rows, true, true, true);
    EXPECT_EQ(unique.numel(), all ? 24 : 1);
    EXPECT_EQ(where.sizes(), rows.sizes());
    EXPECT_EQ(counts.sizes(), unique.sizes());
    EXPECT_EQ(unique.scalar_type(), torch::kFloat);
  }
}

TEST(MetaScope, EndsAndNests) {
  {
    MetaScope outer;
    { MetaScope inner; }
    EXPECT_TRUE(torch::ones({1}).is_meta());
  }
  EXPECT_TRUE(torch::ones({1}).is_cpu());
}

TEST(MetaScope, TravelsWithItsFiber) {
  auto& scheduler = fiber::Scheduler::install();
  fiber::Event entered, seen;
  scheduler.spawn(
      [&] {
        MetaScope meta;
        entered.signal();
        seen.rest({"the other fiber"});
        EXPECT_TRUE(torch::ones({1}).is_meta());
        entered.signal();
      },
      base::FiberSlots{}, 1 << 20);
  entered.rest({"the scope"});
  EXPECT_TRUE(torch::ones({1}).is_cpu());
  EXPECT_EQ(operator_hook().get(), nullptr);
  seen.signal();
  entered.rest({"the end"});
}

}  // namespace
}  // namespace smp::deferred
