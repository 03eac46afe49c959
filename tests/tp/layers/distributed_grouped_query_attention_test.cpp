// Grouped-query attention over the ranks of a group equals that of one process: heads that pad,
// keys that ranks share, norms of heads, biases, windows, positions and padding.
#include "smp/tp/distributed_grouped_query_attention.h"

#include <gmock/gmock.h>

#include "support/refusal.h"
#include "tp/layer_comparison.h"
#include "tp/slices/channel_share.h"

namespace smp::tp {
namespace distributed_grouped_query_attention_test {

using nn::GroupedQueryAttentionOptions;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kWidth = 12, kHead = 4, kBatch = 2, kLength = 5;

GroupedQueryAttentionOptions options_of(std::int64_t heads, std::int64_t keys) {
  return GroupedQueryAttentionOptions(kWidth, heads)
      .kv_heads(keys)
      .rotary(nn::RotaryEmbeddingOptions(kHead).rope_theta(50));
}

enum class Places { kNone, kOfRows, kOfBatches, kOfBatchesAlone };

/// Positions and padding that differ by row, or by batch, made of the input.
template <class Layer>
struct BoundImpl : torch::nn::Module {
  BoundImpl(Layer of, Places of_what) : layer(register_module("layer", of)), places(of_what) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto values = x.detach();
    if (places == Places::kNone) return layer->forward(x, at::Tensor(), at::Tensor());
    const auto present = values.select(-1, 1) > -0.5;
    if (places == Places::kOfRows) {
      const auto shift = (values.select(-1, 0).select(-1, 0) * 10).abs().to(at::kLong);
      return layer->forward(x, shift.unsqueeze(-1) + at::arange(kLength, at::kLong), present);
    }
    const auto jumps = (values[0].select(-1, 0) * 10).abs().to(at::kLong);
    const bool alone = places == Places::kOfBatchesAlone;
    return layer->forward(x, alone ? jumps : jumps.unsqueeze(0), present.narrow(0, 0, 1));
  }
  Layer layer;
  Places places;
};

void expect_as_plain_attention(int size, const GroupedQueryAttentionOptions& options,
                               const char* layout, Places places = Places::kNone) {
  SCOPED_TRACE(testing::Message() << options.heads() << " heads, " << options.kv_heads()
                                  << " of keys, " << size << " ranks, " << layout);
  expect_as_plain(
      [&] {
        return std::make_shared<BoundImpl<nn::GroupedQueryAttention>>(
            nn::GroupedQueryAttention(options), places);
      },
      [&] {
        return std::make_shared<BoundImpl<nn::DistributedGroupedQueryAttention>>(
            nn::DistributedGroupedQueryAttention(options, layout), places);
      },
      numbers(size, {kBatch, kLength, kWidth}), 1e-12, at::kDouble,
      {"k_proj", "v_proj", "q_norm", "k_norm"});
}

TEST(DistributedGroupedQueryAttention, EqualsThatOfOneProcess) {
  for (const int size : {1, 2, 4}) {
    for (const auto* layout : {"speed", "memory"}) {
      for (const auto& [heads, keys] : std::vector<std::pair<int, int>>{
               {4, 4}, {4, 2}, {4, 1}, {8, 4}, {7, 7}, {7, 1}, {6, 3}, {6, 2}, {5, 5}, {1, 1}}) {
        expect_as_plain_attention(size, options_of(heads, keys), layout);
      }
    }
  }
}

TEST(DistributedGroupedQueryAttention, HasTheNormsBiasesAndWindowsOfTheWhole) {
  for (const int size : {2, 4}) {
    for (const auto* layout : {"speed", "memory"}) {
      for (const auto& [heads, keys] : std::vector<std::pair<int, int>>{{4, 2}, {6, 3}, {7, 7}}) {
        const auto plain = options_of(heads, keys);
        auto some = plain;
        expect_as_plain_attention(size, some.qk_norm_eps(1e-6), layout);
        some = plain;
        expect_as_plain_attention(size, some.bias(true).output_bias(true), layout, Places::kOfRows);
        some = plain;
        expect_as_plain_attention(size, some.window(2), layout);
      }
    }
  }
}

/// Ranks with samples of their own may have other positions and padding, of one kind for all rows.
TEST(DistributedGroupedQueryAttention, TakesPlacesThatRowsOfABatchShare) {
  for (const int size : {1, 2, 4}) {
    for (const auto* layout : {"speed", "memory"}) {
      expect_as_plain_attention(size, options_of(4, 2), layout, Places::kOfBatches);
      expect_as_plain_attention(size, options_of(7, 1), layout, Places::kOfBatchesAlone);
    }
  }
}

/// They go by the longest position of a batch, not of the batches of all ranks.
TEST(DistributedGroupedQueryAttention, StretchesDynamicPositionsAsEachBatchDoes) {
  auto options = options_of(4, 2);
  options.rotary().scaling(nn::RotaryScaling::kDynamic).max_positions(4).factor(3);
  for (const int size : {1, 2, 4}) {
    for (const auto* layout : {"speed", "memory"}) {
      for (const auto places : {Places::kNone, Places::kOfRows, Places::kOfBatchesAlone}) {
        expect_as_plain_attention(size, options, layout, places);
      }
    }
  }
}

/// NxDT's Figure 3: 8 ranks with 8 heads of queries and 2 of keys are two groups of four.
TEST(DistributedGroupedQueryAttention, SharesKeysInGroupsOfRanks) {
  std::vector<std::int64_t> key_of_rank, rows;
  for (int rank = 0; rank < 8; ++rank) {
    const HeadShare share(8, 2, kHead, 8, rank);
    ASSERT_EQ(share.real_heads(), 1);
    rows.push_back(share.keys().count);
    key_of_rank.push_back(share.keys().first[static_cast<std::size_t>(rank)] / kHead +
                          share.key_of_head()[0]);
  }
  EXPECT_THAT(key_of_rank, ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_THAT(rows, testing::Each(kHead));
  expect_as_plain_attention(8, options_of(8, 2), "speed");
}

/// Weights of the attention are dropped in training alone; also where a rank has no head (one of
/// two).
TEST(DistributedGroupedQueryAttention, DropsWeightsInTraining) {
  auto options = options_of(1, 1);
  options.dropout(0.5);
  for (const auto batches : {Batches::kOwn, Batches::kPrescaled}) {
    const auto outputs_of = [&](bool training) {
      std::vector<at::Tensor> outputs(2);
      d2d::SimulatedJob job(2, 4);
      torch::manual_seed(3);
      on_group(
          job, 2,
          [&](int rank) {
            const torch::NoGradGuard no_grad;
            nn::DistributedGroupedQueryAttention layer(options, "speed");
            for (auto& weight : layer->parameters()) weight.fill_(0.1 + 0.1 * rank);
            layer->train(training);
            outputs[static_cast<std::size_t>(rank)] =
                layer->forward(numbers(1, {kBatch, kLength, kWidth})[0].to(at::kFloat));
          },
          batches);
      return outputs;
    };
    const auto dropped = outputs_of(true), again = outputs_of(true), whole = outputs_of(false);
    for (const std::size_t rank : {0, 1}) {
      EXPECT_TRUE(at::equal(dropped[rank], again[rank]));
      EXPECT_FALSE(at::allclose(dropped[rank], whole[rank]));
    }
    EXPECT_EQ(at::equal(dropped[0], dropped[1]), batches == Batches::kPrescaled);
  }
}

TEST(DistributedGroupedQueryAttention, RefusesWhatDoesNotFit) {
  d2d::SimulatedJob job(8, 4);
  on_group(job, 8, [](int) {
    EXPECT_THAT(refusal<UsageError>(
                    [] { nn::DistributedGroupedQueryAttention(options_of(2, 1), "memory"); }),
                HasSubstr("width 12 cannot be divided by the 8"));
    nn::DistributedGroupedQueryAttention layer(options_of(2, 1), "speed");
    EXPECT_THAT(refusal<UsageError>([&] {
                  layer->forward(at::ones({2, kWidth}));
                }),
                HasSubstr("expected [batch, sequence, 12]"));
  });
}

}  // namespace distributed_grouped_query_attention_test
}  // namespace smp::tp
