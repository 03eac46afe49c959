// What settings and plans have computed again.
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "api/chain_model.h"
#include "server/recompute/recomputed_calls.h"
#include "smp/recompute/activation_checkpointing.h"

namespace smp {
namespace planned_checkpointing_test {

using at::Tensor;
using testing::HasSubstr;

/// Keeps much more than it is given.
struct HeavyImpl : torch::nn::Module {
  explicit HeavyImpl(std::int64_t width = 16)
      : linear(register_module("linear", nn::Linear(width, width))) {
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) {
    auto h = linear(x);
    for (int i = 0; i < 8; ++i) h = h.tanh();
    return h;
  }
  nn::Linear linear;
};
SMP_MODULE(Heavy);

struct HeavyAttentionImpl : HeavyImpl {
  using HeavyImpl::HeavyImpl;
  Tensor forward(const Tensor& x) { return HeavyImpl::forward(x); }
};
SMP_MODULE(HeavyAttention);

nn::Sequential make_net(std::int64_t width) {
  torch::manual_seed(3);
  nn::Sequential net;
  for (int i = 0; i < 6; ++i) net->push_back(Heavy(width));
  net->push_back(HeavyAttention(width));
  return net;
}

struct Outcome {
  std::map<std::string, Tensor> gradients;
  std::string table;
  int recomputed = 0;
  int keeping_products = 0;
  int marked_with_products = 0;  ///< of modules, when the steps have run
  std::int64_t most = 0;         ///< of the fullest stage, as the plan says
  std::int64_t activations = 0;  ///< of all stages, as it says
  int active = 0;
};

Outcome trained(const Config& config, std::int64_t width = 16) {
  Outcome outcome;
  run_local(
      2,
      [&] {
        auto net = make_net(width);
        DistributedModel model(net);
        auto train =
            smp::step([&](const Tensor& x) { model.backward(net->forward(x).square().sum()); });
        for (int step = 0; step < 2; ++step) train(rows(256, width));
        for (const auto& [name, parameter] : model.local_named_parameters()) {
          outcome.gradients[name] = parameter.grad().clone();
        }
        if (rank() != 0) return;
        for (const auto& module : net->modules(/*include_self=*/false)) {
          const auto* const routed = dynamic_cast<RoutedBase*>(module.get());
          outcome.marked_with_products += routed != nullptr && server::keeps_products(*routed);
        }
        const auto& plan = model.plan();
        outcome.table = plan.table();
        for (const auto& row : plan.rows()) {
          outcome.recomputed += row.recomputed;
          outcome.keeping_products += row.keeps_products;
        }
        for (const auto& stage : plan.summary()->stages) {
          outcome.most = std::max(outcome.most, stage.most_memory());
          outcome.activations += stage.most_activations;
        }
        outcome.active = plan.summary()->active_microbatches;
      },
      config, {.seed = 1});
  return outcome;
}

Config config_of_four() {
  Config config;
  config.microbatches = 4;
  config.plan_cache = "off";
  return config;
}

void expect_same(const Outcome& a, const Outcome& b) {
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (const auto& [name, value] : a.gradients) {
    EXPECT_TRUE(torch::allclose(value, b.gradients.at(name), 1e-12, 1e-14)) << name;
  }
}

TEST(PlannedCheckpointing, ComputesAgainWhatItTakesToFit) {
  auto config = config_of_four();
  const auto free = trained(config);
  EXPECT_EQ(free.recomputed, 0);
  config.activation_checkpointing = "auto";
  const auto roomy = trained(config);
  EXPECT_EQ(roomy.recomputed, 0) << "everything fits";
  config.active_microbatches = 1;
  const auto one = trained(config);
  config.stage_memory = {0.6 * static_cast<double>(one.most) / (1 << 30)};
  const auto tight = trained(config);
  EXPECT_GT(tight.recomputed, 0);
  EXPECT_LE(tight.most, one.most * 6 / 10 + 1);
  EXPECT_EQ(tight.active, 1);
  EXPECT_THAT(tight.table, HasSubstr("computed again in backward, instead of held: "));
  expect_same(free, tight);
}

/// Where they take most of the time, and less memory than there is.
TEST(PlannedCheckpointing, HoldsWhatProductsReturn) {
  constexpr std::int64_t kWide = 256;
  auto config = config_of_four();
  config.activation_checkpointing = "auto";
  config.active_microbatches = 1;
  const auto free = trained(config, kWide);
  config.stage_memory = {static_cast<double>(free.most - free.activations / 4) / (1 << 30)};
  const auto tight = trained(config, kWide);
  EXPECT_GT(tight.keeping_products, 0) << tight.table;
  EXPECT_EQ(tight.marked_with_products, tight.keeping_products);
  EXPECT_THAT(tight.table, HasSubstr("but for products: "));
  EXPECT_LE(tight.most, free.most - free.activations / 4 + 1);
  expect_same(free, tight);
}

/// Here that costs less time than computing again.
TEST(PlannedCheckpointing, HasFewerMicrobatchesInFlight) {
  auto config = config_of_four();
  const auto free = trained(config);
  config.activation_checkpointing = "auto";
  config.stage_memory = {0.6 * static_cast<double>(free.most) / (1 << 30)};
  const auto tight = trained(config);
  EXPECT_LE(tight.most, free.most * 6 / 10 + 1);
  EXPECT_LT(tight.active, 4);
  expect_same(free, tight);
}

TEST(PlannedCheckpointing, SaysWhatCameClosest) {
  auto config = config_of_four();
  config.activation_checkpointing = "auto";
  config.stage_memory = {1e-5};
  EXPECT_THAT(refusal<Error>([&] { trained(config); }), HasSubstr("closest came: "));
}

/// Plans of what is marked by hand need less memory, and the table says why.
TEST(PlannedCheckpointing, PlansKnowMarksOfSettings) {
  auto config = config_of_four();
  const auto free = trained(config);
  config.checkpoint_modules = "Heavy";
  const auto marked = trained(config);
  EXPECT_EQ(marked.recomputed, 6 * 2) << "and the Linear in each";
  EXPECT_LT(marked.most, free.most * 7 / 10);
  EXPECT_THAT(marked.table, HasSubstr("computed again"));
  expect_same(free, marked);
  config.checkpoint_modules.clear();
  config.checkpoint_attentions = true;
  const auto attention = trained(config);
  EXPECT_EQ(attention.recomputed, 2);
  EXPECT_THAT(attention.table, HasSubstr("computed again in backward, instead of held: 6\n"));
  expect_same(free, attention);
}

TEST(PlannedCheckpointing, OffloadingWarnsOnCpus) {
  auto config = config_of_four();
  config.offload_activations = true;
  config.activation_loading_horizon = 2;
  testing::internal::CaptureStderr();
  expect_same(trained(config_of_four()), trained(config));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("offload_activations has no effect on CPUs"));
}

}  // namespace planned_checkpointing_test
}  // namespace smp
