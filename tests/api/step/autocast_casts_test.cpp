// How often a step casts a weight under autocast, and that gradients are those of one process.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/two_ranks.h"
#include "support/weight_casts.h"

namespace smp {
namespace autocast_casts_test {

using at::Tensor;

constexpr std::int64_t kSize = 23;  // of a weight, and of nothing else

/// Whether modules use their weight without history first.
bool peeks = false;

struct PartImpl : torch::nn::Module {
  PartImpl() { weight = register_parameter("weight", torch::randn({kSize, kSize}) * 0.2); }
  Tensor forward(const Tensor& x) {
    auto more = x;
    if (peeks) {
      const torch::NoGradGuard no_grad;
      more = x + at::matmul(x, weight);
    }
    return at::matmul(more, weight).tanh();
  }
  Tensor weight;
};
SMP_MODULE(Part);

struct NetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return b(a(x)); }
  Part a = register_module("a", Part());
  Part b = register_module("b", Part());
};
SMP_MODULE(Net);

Net make_net() {
  torch::manual_seed(2);
  return {};
}

Tensor inputs() {
  torch::manual_seed(9);
  return torch::randn({8, kSize});
}

constexpr int kMicrobatches = 4, kSteps = 3;

/// One process, with a region of autocast for each microbatch.
Net trained_plainly() {
  auto net = make_net();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (const auto& x : inputs().chunk(kMicrobatches)) {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      const auto loss = net->forward(x).to(at::kFloat).square().mean() / kMicrobatches;
      at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
      loss.backward();
    }
    optimizer.step();
  }
  return net;
}

/// Trains by all schedules; returns the casts of each step.
std::vector<int> casts_of_steps(int stages) {
  std::vector<int> counted;
  const auto plain = trained_plainly();
  for (const char* schedule : {"interleaved", "simple", "1f1b", "zero_bubble"}) {
    SCOPED_TRACE(testing::Message() << schedule << ", " << stages << " stages");
    Config config;
    config.precision = "amp";
    config.microbatches = kMicrobatches;
    config.plan_cache = "off";
    config.skip_tracing = true;
    config.pipeline = schedule;
    run_local(stages,
              [&] {
                auto net = make_net();
                DistributedModel model(net);
                model.set_partition("", 0);
                model.set_partition("a", 0);
                model.set_partition("b", stages - 1);
                model.place();
                DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), 0.1));
                auto train = smp::step(
                    [&](Tensor x) { model.backward(model(x).to(at::kFloat).square().mean()); });
                for (int step = 0; step < kSteps; ++step) {
                  optimizer.zero_grad();
                  std::optional<support::WeightCasts> casts;
                  if (rank() == 0) casts.emplace(kSize);
                  smp::barrier();
                  train(inputs());
                  smp::barrier();
                  if (rank() == 0) counted.push_back(casts->count());
                  optimizer.step();
                }
                for (const auto& [name, value] : model.local_named_parameters()) {
                  EXPECT_TRUE(torch::equal(value, plain->named_parameters()[name])) << name;
                }
              },
              config, {.seed = 1});
  }
  return counted;
}

TEST(AutocastCasts, OneAWeightAndStep) {
  peeks = false;
  for (const int count : casts_of_steps(1)) EXPECT_EQ(count, 2);
  // Ranks of one process have one cache, which the one that begins later empties once more.
  for (const int count : casts_of_steps(2)) EXPECT_LE(count, 2 + 1);
}

/// A copy made without history has none: it is made again where a gradient is wanted.
TEST(AutocastCasts, ACopyWithoutHistoryLosesNoGradients) {
  peeks = true;
  for (const int count : casts_of_steps(1)) EXPECT_LE(count, 2 * 2);
  for (const int count : casts_of_steps(2)) EXPECT_LE(count, 2 * 2 + 2);
  peeks = false;
}

}  // namespace autocast_casts_test
}  // namespace smp
