// Parameters of 16 bits with master_weights: the steps are those of float32 training.
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "api/chain_model.h"
#include "api/optimizer/weights_of_one.h"
#include "smp/state_dict.h"

namespace smp {
namespace master_weights_test {

using at::Tensor;
using Values = std::map<std::string, Tensor>;

Config config_of(int stages, bool sharded) {
  Config config;
  config.microbatches = 2;
  config.plan_cache = "off";
  config.loss = "sum";
  config.master_weights = true;
  config.shard_optimizer_state = sharded;
  config.pipeline_parallel_degree = stages;
  return config;
}

/// Gradients that no layout changes, with all bits of bfloat16.
Tensor gradient_of(const Tensor& parameter, int step) {
  const auto count = torch::arange(parameter.numel(), torch::kFloat).view(parameter.sizes());
  return (torch::sin(count + static_cast<float>(step)) * 0.1).to(parameter.scalar_type());
}

void set_gradients(const std::vector<Tensor>& parameters, int step) {
  for (auto parameter : parameters) {
    if (parameter.grad().defined()) parameter.mutable_grad() = gradient_of(parameter, step);
  }
}

template <class Model, class Optimizer>
void train(Model& model, Chain& net, Optimizer& optimizer, int first, int last) {
  auto step = smp::step([&](Tensor x) { model.backward(model(x).sum() * 0); });
  for (int number = first; number < last; ++number) {
    step(torch::ones({2 * dp_size(), 3}, torch::kFloat).to(net->parameters()[0].scalar_type()));
    set_gradients(net->parameters(), number);
    optimizer.step();
  }
}

/// What float32 parameters become that start with values of `type`; gradients are rounded to it.
Values reference(at::ScalarType type, int steps) {
  auto net = make_chain();
  net->to(type);
  net->to(torch::kFloat);
  torch::optim::AdamW optimizer(net->parameters(), 1e-3);
  for (int step = 0; step < steps; ++step) {
    for (auto parameter : net->parameters()) {
      parameter.mutable_grad() = gradient_of(parameter.detach().to(type), step).to(torch::kFloat);
    }
    optimizer.step();
  }
  Values values;
  for (const auto& item : net->named_parameters()) values[item.key()] = item.value().detach();
  return values;
}

template <class Model>
auto wrapped(Model& model, Chain& net) {
  return DistributedOptimizer(model, torch::optim::AdamW(net->parameters(), 1e-3));
}

TEST(MasterWeights, EachLayoutHasRoundedFloat32Steps) {
  constexpr int kSteps = 20;
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    const auto expected = reference(type, kSteps);
    for (const bool sharded : {false, true}) {
      for (const auto& [stages, replicas] :
           std::vector<std::pair<int, int>>{{1, 1}, {1, 2}, {2, 1}, {2, 2}}) {
        SCOPED_TRACE(testing::Message()
                     << type << ' ' << stages << " stages, " << replicas << " replicas" << sharded);
        Values got;
        StateDict state;
        run_local(stages * replicas,
                  [&, type = type] {
                    auto net = make_chain();
                    net->to(type);
                    DistributedModel model(net);
                    auto optimizer = wrapped(model, net);
                    train(model, net, optimizer, 0, kSteps);
                    const auto values = model.state_dict(kAllPpRanks);
                    const auto dict = optimizer_state_dict(model, optimizer, kAllPpRanks);
                    if (rank() != 0) return;
                    for (const auto& [name, value] : values) got[name] = value;
                    state = dict;
                  },
                  config_of(stages, sharded), {.seed = 1});
        ASSERT_EQ(got.size(), expected.size());
        for (const auto& [name, value] : expected) {
          EXPECT_TRUE(torch::equal(got.at(name), value.to(type))) << name;
          // LibTorch's square roots of float32 are not the nearest on every processor.
          EXPECT_TRUE(torch::allclose(state.at("state." + name + ".master"), value, 1e-6, 0))
              << name;
          EXPECT_EQ(state.at("state." + name + ".exp_avg").scalar_type(), torch::kFloat);
        }
      }
    }
  }
}

/// A step of 1e-4 of weights around 1, where neighbours are 2^-8 apart.
TEST(MasterWeights, MoveWhereNearestStandsStill) {
  for (const bool kept : {false, true}) {
    auto config = config_of(1, false);
    config.master_weights = kept;
    run_local(1,
              [&] {
                auto net = weights_of_one(4, 4);
                DistributedModel model(net);
                model.place();
                DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), 1e-4));
                for (int step = 0; step < 200; ++step) {
                  net->weight.mutable_grad() = torch::ones_like(net->weight);
                  optimizer.step();
                }
                const double due = kept ? 0.98046875 : 1;  // of bfloat16, nearest to 0.98
                EXPECT_TRUE(torch::equal(net->weight, torch::full_like(net->weight, due)))
                    << net->weight;
              },
              config, {.seed = 1});
  }
}

/// A job that goes on, before or after placement, in another layout, is one job.
TEST(MasterWeights, ADictTakesThemToOtherLayouts) {
  constexpr int kHalf = 7, kAll = 15;
  const auto expected = reference(torch::kBFloat16, kAll);
  StateDict values, state;
  run_local(2,
            [&] {
              auto net = make_chain();
              net->to(torch::kBFloat16);
              DistributedModel model(net);
              auto optimizer = wrapped(model, net);
              train(model, net, optimizer, 0, kHalf);
              const auto own = model.state_dict(kAllPpRanks);
              const auto own_state = optimizer_state_dict(model, optimizer, kAllPpRanks);
              if (rank() == 0) std::tie(values, state) = std::tie(own, own_state);
            },
            config_of(2, false), {.seed = 1});
  for (const bool placed_first : {false, true}) {
    for (const bool sharded : {false, true}) {
      SCOPED_TRACE(testing::Message() << placed_first << sharded);
      Values got;
      run_local(2,
                [&] {
                  torch::manual_seed(8);
                  Chain net;
                  net->to(torch::kBFloat16);
                  DistributedModel model(net);
                  auto optimizer = wrapped(model, net);
                  if (placed_first) model.place();
                  model.load_state_dict(values);
                  load_optimizer_state_dict(model, optimizer, state);
                  train(model, net, optimizer, kHalf, kAll);
                  const auto own = model.state_dict(kAllPpRanks);
                  if (rank() != 0) return;
                  for (const auto& [name, value] : own) got[name] = value;
                },
                config_of(sharded ? 1 : 2, sharded), {.seed = 1});
      for (const auto& [name, value] : expected) {
        EXPECT_TRUE(torch::equal(got.at(name), value.to(torch::kBFloat16))) << name;
      }
    }
  }
}

TEST(MasterWeights, WhatTheProgramWritesCounts) {
  run_local(1,
            [] {
              auto net = weights_of_one(4, 1);
              DistributedModel model(net);
              model.place();
              DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), 1e-3));
              const auto step = [&] {
                net->weight.mutable_grad() = torch::ones_like(net->weight);
                optimizer.step();
              };
              step();
              {
                const torch::NoGradGuard no_grad;
                net->weight[0][1] = 8;
              }
              step();
              const auto master = optimizer_state_dict(model, optimizer).at("state.weight.master");
              EXPECT_NEAR(master[0][0].item<double>(), 1 - 2e-3, 1e-6);
              EXPECT_NEAR(master[0][1].item<double>(), 8 - 1e-3, 1e-6);
            },
            config_of(1, false), {.seed = 1});
}

/// Without the setting a dict loads, and says what goes; the optimizer's own step is refused.
TEST(MasterWeights, AreLostAloudAndNeverBypassed) {
  StateDict state;
  for (const bool kept : {true, false}) {
    auto config = config_of(1, false);
    config.master_weights = kept;
    run_local(
        1,
        [&] {
          auto net = make_chain();
          net->to(torch::kBFloat16);
          DistributedModel model(net);
          auto optimizer = wrapped(model, net);
          if (kept) {
            train(model, net, optimizer, 0, 1);
            state = optimizer_state_dict(model, optimizer);
            EXPECT_THAT(refusal<UsageError>([&] { optimizer->step(); }),
                        testing::HasSubstr("as they are (master_weights)"));
            return;
          }
          model.place();
          testing::internal::CaptureStderr();
          load_optimizer_state_dict(model, optimizer, state);
          EXPECT_THAT(testing::internal::GetCapturedStderr(),
                      testing::HasSubstr("float32 values of 6 parameters are not used"));
          train(model, net, optimizer, 1, 2);
          EXPECT_FALSE(
              optimizer_state_dict(model, optimizer).contains("state.a.linear.weight.master"));
        },
        config, {.seed = 1});
  }
}

/// Masters belong to the parameter: what one optimizer moves, the next goes on from.
TEST(MasterWeights, TwoOptimizersStepOneParameter) {
  run_local(1,
            [] {
              auto net = weights_of_one(4, 4);
              DistributedModel model(net);
              model.place();
              DistributedOptimizer first(model, torch::optim::SGD(net->parameters(), 1e-4));
              DistributedOptimizer second(model, torch::optim::SGD(net->parameters(), 1e-4));
              for (int step = 0; step < 100; ++step) {
                net->weight.mutable_grad() = torch::ones_like(net->weight);
                first.step();
                second.step();
              }
              EXPECT_EQ(net->weight[0][0].item<double>(), 0.98046875);
            },
            config_of(1, false), {.seed = 1});
}

/// LibTorch makes its first sum in the parameter's type.
TEST(MasterWeights, AdagradBeginsInFloat32) {
  const auto options = torch::optim::AdagradOptions(0.1).initial_accumulator_value(0.1);
  const auto gradient = torch::tensor({0.01f, 0.5f}).to(torch::kBFloat16);
  const auto wide = torch::ones({2}).requires_grad_();
  wide.mutable_grad() = gradient.to(torch::kFloat);
  torch::optim::Adagrad({wide}, options).step();
  run_local(1,
            [&] {
              nn::Linear net(nn::LinearOptions(2, 1).bias(false));
              {
                const torch::NoGradGuard no_grad;
                net->weight.fill_(1);
              }
              net->to(torch::kBFloat16);
              DistributedModel model(net);
              model.place();
              DistributedOptimizer optimizer(model,
                                             torch::optim::Adagrad(net->parameters(), options));
              net->weight.mutable_grad() = gradient.view({1, 2}).clone();
              optimizer.step();
              const auto dict = optimizer_state_dict(model, optimizer);
              EXPECT_TRUE(torch::equal(dict.at("state.weight.master").view({2}), wide.detach()));
            },
            config_of(1, false), {.seed = 1});
}

/// LibTorch's archives know of no masters.
TEST(MasterWeights, AreNotLeftOutOfArchives) {
  run_local(1,
            [] {
              auto net = make_chain();
              net->to(torch::kBFloat16);
              DistributedModel model(net);
              auto optimizer = wrapped(model, net);
              train(model, net, optimizer, 0, 1);
              torch::serialize::OutputArchive archive;
              EXPECT_THAT(refusal<UsageError>([&] { optimizer->save(archive); }),
                          testing::HasSubstr("would leave out the float32 values"));
            },
            config_of(1, false), {.seed = 1});
}

// ---- gradients of 16 bits ----------------------------------------------------------------------

/// 300 microbatches of gradient 1; bfloat16 has no 257.
TEST(WideGradients, MicrobatchesAreAddedInFloat32) {
  for (const bool wide : {true, false}) {
    for (const int ranks : {1, 2}) {
      auto config = config_of(ranks, false);
      config.microbatches = 300;
      config.fp32_grad_accumulation = wide;
      run_local(ranks,
                [&] {
                  auto net = make_chain();
                  net->to(torch::kBFloat16);
                  DistributedModel model(net);
                  model.place();
                  auto step = smp::step([&](Tensor x) { model.backward(model(x).sum()); });
                  int hooked = 0;
                  net->c->linear->bias.register_hook([&](const Tensor& gradient) {
                    ++hooked;
                    return torch::ones_like(gradient);
                  });
                  step(torch::ones({300, 3}, torch::kBFloat16));
                  const auto grad = net->c->linear->bias.grad();
                  if (!grad.defined()) return;  // of the other rank
                  EXPECT_EQ(hooked, 300);
                  EXPECT_TRUE(torch::equal(grad, torch::full_like(grad, wide ? 300 : 256))) << grad;
                },
                config, {.seed = 1});
    }
  }
}

}  // namespace master_weights_test
}  // namespace smp
