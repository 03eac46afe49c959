// The core of attention by itself is what ranks that share a layer compute again, with the masks of
// dropout that they had.
#include "smp/tp/distributed_attention_core.h"

#include <gmock/gmock.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "smp/smp.h"
#include "smp/tp.h"
#include "support/refusal.h"
#include "tp/layer_comparison.h"
#include "tp/plain_transformer.h"

namespace smp::tp {
namespace distributed_attention_core_test {

using testing::HasSubstr;

constexpr std::int64_t kRows = 8, kTokens = 6;

/// Layers of both families, with dropout.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(const char* layout) {
    auto attention = attention_options();
    attention.attention_dropout_prob = 0.4;
    attention.causal_mask_size = kTokens;
    attention.optimize = layout;
    auto output = output_options();
    output.optimize = layout;
    first = register_module("first", nn::DistributedTransformer(attention, output, 2));
    const auto heads = nn::GroupedQueryAttentionOptions(kHidden, 4)
                           .kv_heads(2)
                           .rotary(nn::RotaryEmbeddingOptions(4))
                           .dropout(0.4);
    second = register_module("second", nn::DistributedGroupedQueryAttention(heads, layout));
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto hidden = first(TransformerState{x, {}, {}, {}}).hidden;
    return (second(hidden) * x.sin()).mean();
  }
  nn::DistributedTransformer first{nullptr};
  nn::DistributedGroupedQueryAttention second{nullptr};
};
SMP_MODULE(Net);

using Gradients = std::map<std::string, at::Tensor>;

struct Layout {
  int ranks, pp, tp;
  const char* optimize;
  bool prescaled;
};

/// Returns what rank 0 has after a step, and how many modules are marked.
std::pair<Gradients, int> gradients(const Layout& layout, bool again) {
  Config config;
  config.pipeline_parallel_degree = layout.pp;
  config.tensor_parallel_degree = layout.tp;
  config.prescaled_batch = layout.prescaled;
  config.microbatches = 2;
  config.plan_cache = "off";
  if (again) config.checkpoint_modules = "DistributedAttentionCore";
  Gradients result;
  int marked = 0;
  run_local(layout.ranks,
            [&] {
              torch::manual_seed(7);
              Net net(layout.optimize);
              DistributedModel model(net);
              auto train = step([&](const at::Tensor& x) { model.backward(model(x)); });
              const auto shard = data_shard();
              train(numbers(1, {kRows, kTokens, kHidden})[0].chunk(
                  shard.count)[static_cast<std::size_t>(shard.index)]);
              for (const auto& [name, parameter] : model.local_named_parameters()) {
                result[name + " of rank " + std::to_string(rank())] = parameter.grad().clone();
              }
              if (rank() != 0) return;
              for (const auto& row : model.plan().rows()) marked += row.recomputed ? 1 : 0;
            },
            config, {1});
  return {result, marked};
}

TEST(DistributedAttentionCore, HasTheSameBitsIfItIsComputedAgain) {
  for (const auto& layout : std::vector<Layout>{{2, 1, 2, "speed", false},
                                                {2, 1, 2, "memory", false},
                                                {2, 1, 2, "speed", true},
                                                {4, 2, 2, "memory", true},
                                                {8, 2, 2, "speed", false}}) {
    SCOPED_TRACE(testing::Message() << layout.ranks << " ranks, " << layout.optimize
                                    << (layout.prescaled ? ", prescaled" : ""));
    const auto [expected, none] = gradients(layout, false);
    const auto [found, marked] = gradients(layout, true);
    EXPECT_EQ(none, 0);
    EXPECT_EQ(marked, 3);
    ASSERT_EQ(expected.size(), found.size());
    ASSERT_GT(found.size(), 10u);
    for (const auto& [name, gradient] : expected) {
      EXPECT_TRUE(gradient.equal(found.at(name))) << name;
    }
  }
}

/// Ranks with one batch drop other weights each, as they have other heads.
TEST(DistributedAttentionCore, DropsByNumbersOfItsOwn) {
  std::vector<at::Tensor> dropped(2);
  Config config;
  config.tensor_parallel_degree = 2;
  config.pipeline_parallel_degree = 1;
  config.prescaled_batch = true;
  run_local(2,
            [&] {
              torch::manual_seed(3);
              nn::DistributedAttentionCore core(0.5);
              const auto x = at::ones({1, 2, 16, 4}, at::kDouble);
              dropped[static_cast<std::size_t>(rank())] = core(x, x, x);
            },
            config, {1});
  EXPECT_FALSE(dropped[0].equal(dropped[1]));
}

/// A mark on a whole layer's core is one on that of the layer that stands in for it.
TEST(DistributedAttentionCore, TakesTheMarkOfTheWholeLayers) {
  Config config;
  config.tensor_parallel_degree = 2;
  config.pipeline_parallel_degree = 1;
  config.prescaled_batch = true;
  run_local(2,
            [&] {
              nn::DecoderLayer layer(nn::DecoderLayerOptions(nn::GroupedQueryAttentionOptions(8, 2),
                                                             nn::GatedMlpOptions(8, 4),
                                                             nn::RMSNormOptions(8)));
              set_tensor_parallelism(layer);
              set_activation_checkpointing(layer->self_attn->core);
              DistributedModel model(layer);
              auto train = step([&](const at::Tensor& x) { model.backward(model(x).sum()); });
              train(at::ones({2, 3, 8}));
              int marked = 0;
              for (const auto& row : model.plan().rows()) {
                if (!row.recomputed) continue;
                EXPECT_EQ(row.path, "self_attn.core");
                ++marked;
              }
              EXPECT_EQ(marked, 1);
            },
            config, {1});
}

}  // namespace distributed_attention_core_test
}  // namespace smp::tp
