// How often a step casts a weight under autocast, and that gradients are those of one process.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
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

/// Linear layers, which take rows in any number of dimensions.
struct LinearsImpl : torch::nn::Module {
  explicit LinearsImpl(bool bias) {
    const auto options = nn::LinearOptions(kSize, kSize).bias(bias);
    a = register_module("a", nn::Linear(options));
    b = register_module("b", nn::Linear(options));
  }
  Tensor forward(const Tensor& x) { return b(a(x).tanh()).tanh(); }
  nn::Linear a{nullptr}, b{nullptr};
};
SMP_MODULE(Linears);

constexpr int kMicrobatches = 4, kSteps = 3;

/// A net, and what it is trained with.
template <class Module>
struct Case {
  std::function<Module()> make;
  Tensor batch;
  Module made() const {
    torch::manual_seed(2);
    return make();
  }
};

Tensor inputs(at::IntArrayRef sizes) {
  torch::manual_seed(9);
  return torch::randn(sizes);
}

Case<Net> products() {
  return {[] { return Net(); }, inputs({8, kSize})};
}

/// One process, with a region of autocast for each microbatch.
template <class Module>
Module trained_plainly(const Case<Module>& c) {
  auto net = c.made();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (const auto& x : c.batch.chunk(kMicrobatches)) {
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

Config config_of(const char* schedule) {
  Config config;
  config.precision = "amp";
  config.microbatches = kMicrobatches;
  config.plan_cache = "off";
  config.skip_tracing = true;
  config.pipeline = schedule;
  return config;
}

/// Trains by all schedules; returns the casts of each step.
template <class Module>
std::vector<int> casts_of_steps(int stages, const Case<Module>& c) {
  std::vector<int> counted;
  const auto plain = trained_plainly(c);
  for (const char* schedule : {"interleaved", "simple", "1f1b", "zero_bubble"}) {
    SCOPED_TRACE(testing::Message() << schedule << ", " << stages << " stages");
    run_local(stages,
              [&] {
                auto net = c.made();
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
                  train(c.batch);
                  smp::barrier();
                  if (rank() == 0) counted.push_back(casts->count());
                  optimizer.step();
                }
                for (const auto& [name, value] : model.local_named_parameters()) {
                  EXPECT_TRUE(torch::equal(value, plain->named_parameters()[name])) << name;
                }
              },
              config_of(schedule), {.seed = 1});
  }
  return counted;
}

TEST(AutocastCasts, OneAWeightAndStep) {
  peeks = false;
  for (const int count : casts_of_steps(1, products())) EXPECT_EQ(count, 2);
  // Ranks of one process have one cache, which the one that begins later empties once more.
  for (const int count : casts_of_steps(2, products())) EXPECT_LE(count, 2 + 1);
}

/// LibTorch's own layer multiplies by a view of its weight, which is cast for each microbatch.
TEST(AutocastCasts, OneAStepOfLinearLayers) {
  for (const bool bias : {false, true}) {
    for (const auto& batch : {inputs({8, kSize}), inputs({8, 3, kSize})}) {
      SCOPED_TRACE(testing::Message() << "bias " << bias << ", " << batch.dim() << " dimensions");
      const Case<Linears> c{[bias] { return Linears(bias); }, batch};
      for (const int count : casts_of_steps(1, c)) EXPECT_EQ(count, 2);
      for (const int count : casts_of_steps(2, c)) EXPECT_LE(count, 2 + 1);
    }
  }
}

/// LibTorch keeps no cast of a weight that wants no gradient.
TEST(AutocastCasts, OneAStepOfFrozenWeights) {
  const Case<Linears> c{[] {
                          Linears net(true);
                          net->b->weight.set_requires_grad(false);
                          return net;
                        },
                        inputs({8, kSize})};
  for (const int count : casts_of_steps(1, c)) EXPECT_EQ(count, 2);
}

/// A copy made without history has none: it is made again where a gradient is wanted.
TEST(AutocastCasts, ACopyWithoutHistoryLosesNoGradients) {
  peeks = true;
  for (const int count : casts_of_steps(1, products())) EXPECT_LE(count, 2 * 2);
  for (const int count : casts_of_steps(2, products())) EXPECT_LE(count, 2 * 2 + 2);
  peeks = false;
}

}  // namespace autocast_casts_test
}  // namespace smp
