// Parameters of bfloat16 under stochastic_rounding: what it converges to, and that no layout
// changes a bit of it.
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <map>
#include <string>

#include "api/chain_model.h"
#include "api/optimizer/weights_of_one.h"

namespace smp {
namespace stochastic_rounding_test {

using at::Tensor;

Config config_of(int stages, bool sharded) {
  Config config;
  config.microbatches = 2;
  config.plan_cache = "off";
  config.stochastic_rounding = true;
  config.loss = "sum";
  config.shard_optimizer_state = sharded;
  config.pipeline_parallel_degree = stages;
  return config;
}

/// Parameters after some steps with gradients that the layout does not change: whole numbers.
std::map<std::string, Tensor> trained(int ranks, Config config) {
  std::map<std::string, Tensor> result;
  run_local(ranks,
            [&] {
              auto net = make_chain();
              net->to(torch::kBFloat16);
              DistributedModel model(net);
              DistributedOptimizer optimizer(model, torch::optim::AdamW(net->parameters(), 1e-3));
              model.place();
              for (int step = 0; step < 5; ++step) {
                auto train = smp::step([&](Tensor x) { model.backward(model(x).sum() * 0); });
                if (dp_rank() == 1 && step == 2) {  // an evaluation of its own
                  const torch::NoGradGuard no_grad;
                  auto evaluate = smp::step([&](Tensor x) { return model(x).sum(); });
                  evaluate(torch::ones({2, 3}, torch::kBFloat16));
                }
                train(torch::ones({2 * dp_size(), 3}, torch::kBFloat16));
                for (const auto& parameter : net->parameters()) {
                  if (!parameter.grad().defined()) continue;
                  at::Tensor(parameter).mutable_grad() = torch::full_like(parameter, 1 + step % 2);
                }
                optimizer.step();
              }
              for (const auto& [name, value] : model.state_dict(kAllPpRanks)) {
                if (rank() == 0) result[name] = value;
              }
            },
            config, {.seed = 1});
  return result;
}

TEST(StochasticRounding, NoLayoutChangesABit) {
  const auto expected = trained(1, config_of(1, false));
  for (const bool sharded : {false, true}) {
    for (const int stages : {1, 2}) {
      for (const int replicas : {1, 2}) {
        SCOPED_TRACE(testing::Message() << stages << " stages, " << replicas << " replicas");
        const auto got = trained(stages * replicas, config_of(stages, sharded));
        ASSERT_EQ(got.size(), expected.size());
        for (const auto& [name, value] : expected) {
          EXPECT_EQ(value.scalar_type(), torch::kBFloat16);
          EXPECT_TRUE(torch::equal(value, got.at(name))) << name;
        }
      }
    }
  }
}

/// A step of 1e-4 of weights around 1, where neighbours are 2^-8 apart: to nearest they stand
/// still.
TEST(StochasticRounding, MovesWhereNearestStandsStill) {
  for (const bool by_chance : {false, true}) {
    Config config;
    config.plan_cache = "off";
    config.stochastic_rounding = by_chance;
    run_local(1,
              [&] {
                auto net = weights_of_one(64, 64);
                DistributedModel model(net);
                model.place();
                DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), 1e-4));
                for (int step = 0; step < 200; ++step) {
                  auto train = smp::step([&](Tensor x) { model.backward(model(x).sum() * 0); });
                  train(torch::ones({2, 64}, torch::kBFloat16));
                  net->weight.mutable_grad() = torch::ones_like(net->weight);
                  optimizer.step();
                }
                const double mean = net->weight.to(torch::kFloat).mean().item<double>();
                EXPECT_NEAR(mean, by_chance ? 0.98 : 1, by_chance ? 0.001 : 0);
              },
              config, {.seed = 1});
  }
}

/// The state is of float32, and goes on where it was saved.
TEST(StochasticRounding, StateIsWideAndSurvivesADict) {
  run_local(
      1,
      [] {
        nn::Linear net(4, 4);
        net->to(torch::kBFloat16);
        DistributedModel model(net);
        model.place();
        const auto make = [&] {
          return DistributedOptimizer(model, torch::optim::AdamW(net->parameters(), 1e-2));
        };
        const auto step = [&](auto& optimizer) {
          net->weight.mutable_grad() = torch::full_like(net->weight, 0.3);
          net->bias.mutable_grad() = torch::full_like(net->bias, 0.1);
          optimizer.step();
        };
        auto first = make();
        step(first);
        const auto dict = optimizer_state_dict(model, first);
        EXPECT_EQ(dict.at("state.weight.exp_avg").scalar_type(), torch::kFloat);
        const auto before = net->weight.detach().clone();
        step(first);
        const auto after = net->weight.detach().clone();
        {
          const torch::NoGradGuard no_grad;
          net->weight.copy_(before);
        }
        auto second = make();
        load_optimizer_state_dict(model, second, dict);
        set_step_count(1);  // of steps of an optimizer
        step(second);
        EXPECT_TRUE(torch::equal(optimizer_state_dict(model, second).at("state.weight.exp_avg"),
                                 optimizer_state_dict(model, first).at("state.weight.exp_avg")));
        EXPECT_TRUE(torch::equal(net->weight, after));
      },
      config_of(1, false), {.seed = 1});
}

/// Steps that no training step lies between draw other bits, or most weights would stand still.
TEST(StochasticRounding, EachStepOfAnOptimizerDrawsAnew) {
  run_local(1,
            [] {
              auto net = weights_of_one(64, 64);
              DistributedModel model(net);
              model.place();
              DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), 1e-4));
              for (int step = 0; step < 200; ++step) {
                net->weight.mutable_grad() = torch::ones_like(net->weight);
                optimizer.step();
              }
              const auto weight = net->weight.to(torch::kFloat);
              EXPECT_NEAR(weight.mean().item<double>(), 0.98, 0.001);
              EXPECT_GT((weight < 1).sum().item<int>(), 4000);
              EXPECT_THAT(refusal<UsageError>([&] { optimizer->step(); }),
                          testing::HasSubstr("as they are (stochastic_rounding)"));
            },
            config_of(1, false), {.seed = 1});
}

}  // namespace stochastic_rounding_test
}  // namespace smp
