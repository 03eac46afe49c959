// Steps in one pass over memory, of every optimizer that has them, against LibTorch's own in
// float32; and optimizers that must not be stepped so.
#include <gmock/gmock.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api/two_ranks.h"
#include "smp/state_dict.h"

namespace smp {
namespace fused_update_test {

using at::Tensor;
using namespace torch::optim;

constexpr int kSteps = 6;

using Make = std::function<std::unique_ptr<Optimizer>(std::vector<Tensor>)>;

template <class Kind, class Options>
Make maker(Options options) {
  return [options](std::vector<Tensor> parameters) -> std::unique_ptr<Optimizer> {
    return std::make_unique<Kind>(std::move(parameters), options);
  };
}

const std::vector<std::pair<std::string, Make>>& kinds() {
  static const std::vector<std::pair<std::string, Make>> all = {
      {"AdamW", maker<AdamW>(AdamWOptions(1e-2).weight_decay(0.1))},
      {"Adam", maker<Adam>(AdamOptions(1e-2).weight_decay(0.1))},
      {"Adam without decay", maker<Adam>(AdamOptions(1e-2).betas({0.8, 0.9}))},
      {"amsgrad", maker<AdamW>(AdamWOptions(1e-2).amsgrad(true))},
      {"SGD", maker<SGD>(SGDOptions(1e-2))},
      {"momentum", maker<SGD>(SGDOptions(1e-2).momentum(0.9).dampening(0.1).weight_decay(0.1))},
      {"nesterov", maker<SGD>(SGDOptions(1e-2).momentum(0.9).nesterov(true))},
      {"RMSprop", maker<RMSprop>(RMSpropOptions(1e-2))}};
  return all;
}

nn::Linear make_net() {
  torch::manual_seed(4);
  return nn::Linear(37, 29);
}

Tensor gradient_of(const Tensor& parameter, int step) {
  const auto count = torch::arange(parameter.numel(), torch::kFloat).view(parameter.sizes());
  return (torch::sin(count * 1.7 + step) * 0.3).to(at::kBFloat16);
}

/// LibTorch's optimizer on float32 parameters.
std::vector<Tensor> by_libtorch(const Make& make, at::ScalarType type) {
  auto net = make_net();
  net->to(type);
  net->to(at::kFloat);
  const auto optimizer = make(net->parameters());
  for (int step = 0; step < kSteps; ++step) {
    for (auto& parameter : net->parameters()) {
      parameter.mutable_grad() = gradient_of(parameter, step).to(at::kFloat);
    }
    optimizer->step();
  }
  return net->parameters();
}

/// The values, and what is kept in float32 of them.
struct Stepped {
  std::vector<Tensor> parameters;
  StateDict state;
  std::vector<std::int64_t> versions;
};

Stepped by_smp(const Make& make, const std::string& precision) {
  Stepped result;
  Config config;
  config.precision = precision;
  config.plan_cache = "off";
  run_local(1,
            [&] {
              auto net = make_net();
              DistributedModel model(net);
              model.place();
              DistributedOptimizer optimizer(model, make(net->parameters()));
              for (int step = 0; step < kSteps; ++step) {
                for (auto& parameter : net->parameters()) {
                  parameter.mutable_grad() =
                      gradient_of(parameter, step).to(parameter.scalar_type());
                }
                std::vector<std::int64_t> before;
                for (const auto& parameter : net->parameters())
                  before.push_back(parameter._version());
                optimizer.step();
                for (std::size_t i = 0; i < before.size(); ++i) {
                  EXPECT_GT(net->parameters()[i]._version(), before[i]);
                }
              }
              for (const auto& parameter : net->parameters()) {
                result.parameters.push_back(parameter.detach().clone());
              }
              result.state = optimizer_state_dict(model, optimizer);
            },
            config, {.seed = 1});
  return result;
}

TEST(FusedUpdate, StepsAsLibTorchDoesInFloat32) {
  for (const auto& [name, make] : kinds()) {
    SCOPED_TRACE(name);
    const auto due = by_libtorch(make, at::kFloat);
    const auto got = by_smp(make, "fp32");
    for (std::size_t i = 0; i < due.size(); ++i) {
      EXPECT_TRUE(torch::allclose(got.parameters[i], due[i], 1e-6, 1e-7));
    }
  }
}

TEST(FusedUpdate, MastersAreThoseOfFloat32Training) {
  for (const auto& [name, make] : kinds()) {
    SCOPED_TRACE(name);
    const auto due = by_libtorch(make, at::kBFloat16);
    const auto got = by_smp(make, "bf16");
    const auto names = {"weight", "bias"};
    std::size_t i = 0;
    for (const std::string parameter : names) {
      const auto master = got.state.at("state." + parameter + ".master");
      EXPECT_TRUE(torch::allclose(master, due[i], 1e-6, 1e-7)) << parameter;
      EXPECT_TRUE(torch::equal(got.parameters[i], master.to(at::kBFloat16))) << parameter;
      if (name.find("Adam") == 0) {
        EXPECT_EQ(got.state.at("state." + parameter + ".exp_avg_sq").scalar_type(), at::kFloat);
        EXPECT_EQ(got.state.at("state." + parameter + ".step").item<double>(), kSteps);
      }
      ++i;
    }
  }
}

/// Nobody asked for masters or for rounding by chance.
TEST(FusedUpdate, LeavesParametersThatTheProgramMadeOf16BitsToLibTorchUnderAmp) {
  Config config;
  config.precision = "amp";
  config.plan_cache = "off";
  for (const auto& [name, make] : kinds()) {
    SCOPED_TRACE(name);
    run_local(1,
              [&make = make] {
                auto net = make_net(), plain = make_net();
                net->to(at::kBFloat16);
                plain->to(at::kBFloat16);
                DistributedModel model(net);
                model.place();
                DistributedOptimizer optimizer(model, make(net->parameters()));
                const auto own = make(plain->parameters());
                for (int step = 0; step < kSteps; ++step) {
                  for (const auto& of : {net->parameters(), plain->parameters()}) {
                    for (auto parameter : of)
                      parameter.mutable_grad() = gradient_of(parameter, step);
                  }
                  optimizer.step();
                  own->step();
                }
                for (std::size_t i = 0; i < plain->parameters().size(); ++i) {
                  EXPECT_TRUE(torch::equal(net->parameters()[i], plain->parameters()[i])) << i;
                }
              },
              config, {.seed = 1});
  }
}

/// Rounded by chance at each of a few steps, a value is near float32's.
TEST(FusedUpdate, ByChanceStaysNear) {
  for (const auto& [name, make] : kinds()) {
    SCOPED_TRACE(name);
    const auto due = by_libtorch(make, at::kBFloat16);
    const auto got = by_smp(make, "bf16_sr");
    for (std::size_t i = 0; i < due.size(); ++i) {
      EXPECT_EQ(got.parameters[i].scalar_type(), at::kBFloat16);
      EXPECT_TRUE(torch::allclose(got.parameters[i].to(at::kFloat), due[i], 0.05, 1e-2));
      EXPECT_FALSE(torch::equal(got.parameters[i], due[i].to(at::kBFloat16)));
    }
  }
}

/// Somebody's own optimizer, which only its own step() knows.
struct Halved : AdamW {
  using AdamW::AdamW;
  Tensor step(LossClosure closure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      for (auto& parameter : group.params()) parameter.mul_(0.5);
    }
    return closure ? closure() : Tensor();
  }
};

TEST(FusedUpdate, LeavesDerivedOptimizersTheirStep) {
  for (const std::string precision : {"fp32", "bf16"}) {
    const auto got = by_smp(maker<Halved>(AdamWOptions(1e-2)), precision);
    const auto start = make_net()->weight.detach().to(got.parameters[0].scalar_type());
    EXPECT_TRUE(torch::equal(got.parameters[0], start * std::pow(0.5, kSteps))) << precision;
  }
}

}  // namespace fused_update_test
}  // namespace smp
