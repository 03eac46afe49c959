// The memory that a plan promises, against the bytes of tensors that each rank really holds.
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "smp/distributed_model.h"
#include "smp/distributed_optimizer.h"
#include "smp/module.h"
#include "smp/nn/linear.h"
#include "smp/session.h"
#include "smp/step.h"
#include "support/own_mpi.h"
#include "support/tensor_bytes.h"

namespace smp {
namespace memory_mpi_test {

constexpr std::int64_t kWidth = 128;
constexpr std::int64_t kRows = 4096;

/// A block of a decoder: what all blocks read travels to every one of them.
struct LayerImpl : torch::nn::Module {
  nn::Linear first = register_module("first", nn::Linear(kWidth, 2 * kWidth));
  nn::Linear second = register_module("second", nn::Linear(2 * kWidth, kWidth));
  nn::Linear side = register_module("side", nn::Linear(kWidth, kWidth));
  at::Tensor forward(const at::Tensor& x, const at::Tensor& read_by_all) {
    return x + second(torch::relu(first(x))) + side(read_by_all);
  }
};
SMP_MODULE(Layer);

struct NetImpl : torch::nn::Module {
  std::vector<Layer> layers;
  NetImpl() {
    for (int i = 0; i < 8; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), Layer()));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto read_by_all = torch::tanh(x);
    auto y = x;
    for (auto& layer : layers) y = layer(y, read_by_all);
    return y.square().mean();
  }
};
SMP_MODULE(Net);

struct Result {
  double predicted, measured;
};

/// Of this rank, once the optimizer has its state.
template <class Optimizer, class Options>
Result train(Options options) {
  Config config;
  config.microbatches = 8;
  config.pipeline = "simple";  // all microbatches are held at once, whatever the timing
  int argc = 0;
  char* argv[] = {nullptr};
  const auto session = init(argc, argv, config);
  const auto batch = torch::ones({kRows, kWidth});
  const auto before = support::live_tensor_bytes();
  torch::manual_seed(1);
  Net net;
  DistributedModel model(net);
  DistributedOptimizer optimizer(model, Optimizer(net->parameters(), options));
  auto run = step([&](const at::Tensor& x) {
    const auto loss = model(x);
    model.backward(loss);
    return loss;
  });
  // How many gradients have come and wait differs from step to step where ranks share cores (by up
  // to a fifth of the peak): the least of those steps in which the optimizer's state is there.
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < 12; ++i) {
    optimizer.zero_grad();
    barrier();
    support::take_peak_tensor_bytes();
    run(batch);
    optimizer.step();
    const auto peak = support::take_peak_tensor_bytes() - before;
    if (i >= 2) least = std::min(least, peak);
  }
  const auto& stage = model.plan().summary()->stages.at(static_cast<std::size_t>(pp_rank()));
  return {static_cast<double>(stage.memory()), static_cast<double>(least)};
}

/// A stage that nothing holds up needs what was promised.
void expect_close(const Result& result) {
  EXPECT_GT(result.measured, 4e6);
  EXPECT_LT(result.measured / result.predicted, 1.10)
      << "predicted " << result.predicted << ", measured " << result.measured;
  EXPECT_LT(result.predicted / result.measured, 1.10)
      << "predicted " << result.predicted << ", measured " << result.measured;
}

TEST(Memory, IsWhatThePlanPromises) {
  support::count_tensor_bytes();
  expect_close(train<torch::optim::Adam>(torch::optim::AdamOptions(1e-3)));
  expect_close(train<torch::optim::SGD>(torch::optim::SGDOptions(1e-3)));
}

}  // namespace memory_mpi_test
}  // namespace smp
