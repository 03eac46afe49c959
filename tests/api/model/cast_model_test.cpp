// The setting `precision`: what is cast, and that each layout trains as one process does that
// computes in the same types.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "api/two_ranks.h"
#include "smp/clip_grad.h"
#include "smp/delayed_init.h"
#include "smp/precision/grad_scaler.h"
#include "smp/state_dict.h"

namespace smp {
namespace cast_model_test {

using at::Tensor;

struct HalfOfItImpl : torch::nn::Module {
  HalfOfItImpl(int from, int to_) : linear(register_module("linear", nn::Linear(from, to_))) {}
  Tensor forward(const Tensor& x) {
    seen = at::linear(x, linear->weight, linear->bias).scalar_type();
    return linear(x).tanh();
  }
  nn::Linear linear;
  at::ScalarType seen = at::kDouble;  ///< what a product was computed in
};
SMP_MODULE(HalfOfIt);

struct TwoHalvesImpl : torch::nn::Module {
  TwoHalvesImpl()
      : a(register_module("a", HalfOfIt(6, 16))), b(register_module("b", HalfOfIt(16, 3))) {}
  Tensor forward(const Tensor& x) { return b(a(x)); }
  HalfOfIt a, b;
};
SMP_MODULE(TwoHalves);

TwoHalves make_net() {
  torch::manual_seed(3);
  return {};
}

Tensor inputs(int step) {
  torch::manual_seed(static_cast<std::uint64_t>(100 + step));
  return torch::randn({8, 6});
}

Tensor loss_of(const Tensor& scores) { return (scores.to(at::kFloat) - 0.5).square().mean(); }

Config config_of(const std::string& precision, int stages = 1, bool sharded = false) {
  Config config;
  config.precision = precision;
  config.microbatches = 2;
  config.plan_cache = "off";
  config.pipeline_parallel_degree = stages;
  config.shard_optimizer_state = sharded;
  return config;
}

struct WithBuffersImpl : torch::nn::Module {
  WithBuffersImpl() {
    linear = register_module("linear", nn::Linear(4, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    layer_norm =
        register_module("layer_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
    angles = register_buffer("angles", torch::rand({4}));
    ids = register_parameter("ids", torch::arange(4), /*requires_grad=*/false);
  }
  Tensor forward(const Tensor& x) { return linear(x); }
  nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::LayerNorm layer_norm{nullptr};
  Tensor angles, ids;
};
SMP_MODULE(WithBuffers);

TEST(CastModel, RoundsParametersAndNothingElse) {
  const std::map<std::string, at::ScalarType> types{{"bf16", at::kBFloat16},
                                                    {"bf16_sr", at::kBFloat16},
                                                    {"fp16", at::kHalf},
                                                    {"fp32", at::kFloat},
                                                    {"amp", at::kFloat}};
  for (const auto& [precision, type] : types) {
    SCOPED_TRACE(precision);
    run_local(1,
              [&, type = type] {
                torch::manual_seed(1);
                WithBuffers net;
                const auto weight = net->linear->weight;
                const auto before = weight.detach().clone();
                const auto angles = net->angles.clone();
                torch::optim::SGD optimizer(net->parameters(), 0.1);
                DistributedModel model(net);
                EXPECT_EQ(weight.scalar_type(), type);  // the same tensor, as optimizers know it
                EXPECT_TRUE(net->linear->weight.is_same(weight));
                EXPECT_TRUE(torch::equal(weight, before.to(type)));
                EXPECT_EQ(net->layer_norm->weight.scalar_type(), type);
                EXPECT_EQ(net->ids.scalar_type(), at::kLong);
                EXPECT_TRUE(torch::equal(net->angles, angles));
                EXPECT_EQ(net->norm->weight.scalar_type(), at::kFloat);
                EXPECT_EQ(net->norm->running_var.scalar_type(), at::kFloat);
              },
              config_of(precision), {.seed = 1});
  }
}

TEST(CastModel, LeavesModelsAsTheyAreWithoutTheSetting) {
  run_local(1,
            [&] {
              auto net = make_net();
              net->b->to(at::kBFloat16);
              const DistributedModel model(net);
              EXPECT_EQ(net->a->linear->weight.scalar_type(), at::kFloat);
              EXPECT_EQ(net->b->linear->weight.scalar_type(), at::kBFloat16);
            },
            config_of(""), {.seed = 1});
}

/// Numbers of bfloat16's generator are others than those of float32, rounded.
TEST(CastModel, DelayedValuesAreFloat32OnesRounded) {
  const auto plain = make_net();
  for (const int stages : {1, 2}) {
    std::size_t seen = 0;
    run_local(stages,
              [&] {
                TwoHalves net{nullptr};
                {
                  const delay_param_initialization delayed;
                  net = make_net();
                }
                DistributedModel model(net);
                model.set_partition("", 0);
                model.set_partition("b", stages - 1);
                model.place();
                for (const auto& [name, value] : model.local_named_parameters()) {
                  EXPECT_EQ(value.scalar_type(), at::kBFloat16);
                  const auto due = plain->named_parameters()[name].detach().to(at::kBFloat16);
                  EXPECT_TRUE(torch::equal(value, due)) << name;
                  ++seen;
                }
              },
              config_of("bf16", stages), {.seed = 1});
    EXPECT_EQ(seen, 4u);
  }
}

using Values = std::map<std::string, Tensor>;

/// One process that does the same: gradients of 16 bits, summed in float32 and rounded; masters
/// stepped by LibTorch's AdamW.
Values masters_by_hand(int steps) {
  auto net = make_net();
  net->to(at::kBFloat16);
  std::vector<Tensor> masters;
  for (const auto& parameter : net->parameters()) {
    masters.push_back(parameter.detach().to(at::kFloat).set_requires_grad(true));
  }
  torch::optim::AdamW optimizer(masters, 1e-2);
  for (int step = 0; step < steps; ++step) {
    std::vector<Tensor> sums(masters.size());
    for (const auto& x : inputs(step).chunk(2)) {
      net->zero_grad();
      (loss_of(net(x.to(at::kBFloat16))) / 2).backward();
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const auto gradient = net->parameters()[i].grad().to(at::kFloat);
        sums[i] = sums[i].defined() ? sums[i] + gradient : gradient;
      }
    }
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      masters[i].mutable_grad() = sums[i].to(at::kBFloat16).to(at::kFloat);
    }
    optimizer.step();
    for (std::size_t i = 0; i < sums.size(); ++i) net->parameters()[i].copy_(masters[i]);
  }
  Values values;
  for (std::size_t i = 0; i < masters.size(); ++i) {
    values[net->named_parameters()[i].key()] = masters[i].detach();
  }
  return values;
}

TEST(CastModel, Bf16TrainsAsOneProcessWithMasters) {
  constexpr int kSteps = 4;
  const auto expected = masters_by_hand(kSteps);
  for (const int stages : {1, 2}) {
    StateDict state;
    run_local(stages,
              [&] {
                auto net = make_net();
                DistributedModel model(net);
                model.set_partition("", 0);
                model.set_partition("b", stages - 1);
                DistributedOptimizer optimizer(model, torch::optim::AdamW(net->parameters(), 1e-2));
                auto train = smp::step([&](Tensor x) {
                  if (is_tracing()) return;
                  model.backward(loss_of(model(x.to(at::kBFloat16))));
                });
                for (int step = 0; step < kSteps; ++step) {
                  optimizer.zero_grad();
                  train(inputs(step));
                  optimizer.step();
                }
                const auto dict = optimizer_state_dict(model, optimizer, kAllPpRanks);
                if (rank() == 0) state = dict;
              },
              config_of("bf16", stages), {.seed = 1});
    for (const auto& [name, due] : expected) {
      EXPECT_TRUE(torch::allclose(state.at("state." + name + ".master"), due, 1e-5, 1e-6)) << name;
    }
  }
}

/// One process under autocast, a microbatch after the other.
Values by_autocast(std::vector<double>& losses) {
  auto net = make_net();
  for (const auto& x : inputs(0).chunk(2)) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const auto loss = loss_of(net(x));
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    losses.push_back(loss.item<double>());
    (loss / 2).backward();
  }
  Values gradients;
  for (const auto& item : net->named_parameters()) gradients[item.key()] = item.value().grad();
  return gradients;
}

TEST(CastModel, AmpComputesInBfloat16OnEveryRank) {
  std::vector<double> due_losses;
  const auto due = by_autocast(due_losses);
  for (const int stages : {1, 2}) {
    std::size_t seen = 0;
    run_local(stages,
              [&] {
                auto net = make_net();
                DistributedModel model(net);
                model.set_partition("", 0);
                model.set_partition("b", stages - 1);
                auto train = smp::step([&](Tensor x) {
                  const auto loss = loss_of(model(x));
                  model.backward(loss);
                  return loss;
                });
                const auto losses = train(inputs(0));
                EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
                if (rank() == 0) {
                  for (std::size_t i = 0; i < 2; ++i) {
                    EXPECT_EQ(losses.outputs()[i].item<double>(), due_losses[i]);
                  }
                }
                for (const auto& part : {net->a, net->b}) {
                  if (!model.owns(part->linear->weight)) continue;
                  EXPECT_EQ(part->seen, at::kBFloat16);
                }
                for (const auto& [name, value] : model.local_named_parameters()) {
                  EXPECT_EQ(value.grad().scalar_type(), at::kFloat);
                  EXPECT_TRUE(torch::equal(value.grad(), due.at(name))) << name;
                  ++seen;
                }
              },
              config_of("amp", stages), {.seed = 1});
    EXPECT_EQ(seen, 4u);
  }
}

/// The first factors make every gradient infinite in float16; then losses fall as in float32.
TEST(CastModel, Fp16TrainsWithAScaler) {
  std::map<std::string, double> last;
  for (const std::string precision : {"fp32", "fp16"}) {
    for (const int stages : {1, 2}) {
      double loss = 0;
      run_local(stages * 2,
                [&] {
                  auto net = make_net();
                  DistributedModel model(net);
                  model.set_partition("", 0);
                  model.set_partition("b", stages - 1);
                  DistributedOptimizer optimizer(model,
                                                 torch::optim::AdamW(net->parameters(), 1e-2));
                  GradScaler scaler({.init_scale = std::pow(2.0, 40), .growth_interval = 1000});
                  auto train = smp::step([&](Tensor x) {
                    const auto own = loss_of(model(x.to(net->a->linear->weight.scalar_type())));
                    model.backward(scaler.scale(own));
                    return own;
                  });
                  for (int step = 0; step < 80; ++step) {
                    optimizer.zero_grad();
                    const auto losses = train(torch::cat({inputs(0), inputs(0)}).chunk(2)[0]);
                    scaler.unscale_(optimizer);
                    for (const auto& parameter : model.local_parameters()) {
                      if (!parameter.grad().defined()) continue;
                      EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
                    }
                    clip_grad_norm_(model, 1.0);
                    scaler.step(optimizer);
                    scaler.update();
                    if (rank() == 0) loss = losses.reduce_mean().item<double>();
                  }
                  EXPECT_EQ(scaler.skipped_steps() > 5, precision == "fp16");
                  EXPECT_LT(scaler.skipped_steps(), 40);
                },
                config_of(precision, stages), {.seed = 1});
      last[precision + std::to_string(stages)] = loss;
    }
  }
  EXPECT_LT(last["fp16" + std::to_string(1)], 0.05);
  EXPECT_NEAR(last["fp161"], last["fp162"], 1e-6);
}

}  // namespace cast_model_test
}  // namespace smp
