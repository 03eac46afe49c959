// api/state/buffers_testing.h: training on one to four ranks compared with one process of plain
// LibTorch, and a model whose buffers are read by another module than the one that registers them.
#pragma once

#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "smp/smp.h"

namespace smp::buffer_tests {

using at::Tensor;

inline constexpr int kMicrobatches = 4;
inline constexpr int kSteps = 3;

inline Tensor batch(int step) {
  return torch::linspace(-1 - step, 2, 16 * 4, torch::kDouble).sin().reshape({16, 4});
}

/// Of float tensors: Module::to() would make integers float64 too.
inline void widen(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  const auto each = [](const std::vector<Tensor>& tensors) {
    for (const auto& tensor : tensors) {
      if (tensor.defined() && tensor.scalar_type() == torch::kFloat) {
        tensor.set_data(tensor.to(torch::kDouble));
      }
    }
  };
  each(module.parameters());
  each(module.buffers());
}

/// Parameters and buffers after training, by name; and the losses of all steps.
struct Trained {
  std::map<std::string, Tensor> tensors;
  std::vector<double> losses;
};

/// Plain LibTorch: microbatch after microbatch.
template <class Net>
Trained train_plainly(Net net) {
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    double loss = 0;
    for (const auto& x : batch(step).chunk(kMicrobatches)) {
      const auto own = net->forward(x).pow(2).mean() / kMicrobatches;
      torch::autograd::backward({own});
      loss += own.template item<double>();
    }
    optimizer.step();
    trained.losses.push_back(loss);
  }
  for (const auto& item : net->named_parameters()) trained.tensors[item.key()] = item.value();
  for (const auto& item : net->named_buffers()) trained.tensors[item.key()] = item.value();
  return trained;
}

/// On `ranks` ranks, with `pins` modulo their number; what a rank owns is compared there.
template <class Net>
void expect_trained(const std::function<Net()>& make, const std::map<std::string, int>& pins,
                    bool skip_tracing = false, int most_ranks = 4, bool random_order = true) {
  torch::manual_seed(2);
  const auto expected = train_plainly(make());
  for (int ranks = 1; ranks <= most_ranks; ++ranks) {
    Config config;
    config.microbatches = kMicrobatches;
    config.plan_cache = "off";
    config.skip_tracing = skip_tracing;
    run_local(
        ranks,
        [&] {
          torch::manual_seed(2);
          auto net = make();
          DistributedModel model(net);
          for (const auto& [path, stage] : pins) model.set_partition(path, stage % size());
          DistributedOptimizer optimizer(model, torch::optim::SGD(model.parameters(), 0.05));
          auto train = smp::step([&](Tensor x) {
            auto loss = model(x).pow(2).mean();
            model.backward(loss);
            return loss;
          });
          for (int step = 0; step < kSteps; ++step) {
            optimizer.zero_grad();
            const auto loss = train(batch(step)).reduce_mean().template item<double>();
            optimizer.step();
            EXPECT_NEAR(loss, expected.losses[step], 1e-12) << ranks << " ranks, step " << step;
          }
          auto own = model.local_named_parameters();
          for (auto& item : model.local_named_buffers()) own.push_back(item);
          for (const auto& [name, tensor] : own) {
            EXPECT_TRUE(at::allclose(tensor.to(torch::kDouble),
                                     expected.tensors.at(name).to(torch::kDouble), 1e-12, 1e-12))
                << name << " on " << ranks << " ranks:\n"
                << tensor << "\nand in one process:\n"
                << expected.tensors.at(name);
          }
        },
        config, {.seed = static_cast<std::uint64_t>(ranks), .random_order = random_order});
  }
}

/// Registers buffers of all types, which its parent and the body of the step read.
struct TablesImpl : torch::nn::Module {
  explicit TablesImpl(std::int64_t large)
      : linear(register_module("linear", nn::Linear(4, 4))),
        positions(register_buffer("positions", torch::arange(4).expand({1, -1}))),
        mask(register_buffer("mask", torch::arange(4) > 1)),
        scale(register_buffer("scale", torch::linspace(1, 2, 4, torch::kDouble))),
        turn(register_buffer("turn", torch::polar(torch::ones({4}, torch::kDouble),
                                                  torch::linspace(0, 1, 4, torch::kDouble)))),
        half(register_buffer("half", torch::linspace(0, 1, 4).to(torch::kHalf))),
        big(register_buffer("big", torch::linspace(1, 2, large, torch::kDouble))),
        nothing(register_buffer("nothing", Tensor())) {
    widen(*this);
  }
  Tensor forward(const Tensor& x) { return linear(x) * scale; }
  nn::Linear linear;
  Tensor positions, mask, scale, turn, half, big, nothing;
};
SMP_MODULE(Tables);

/// Reads all of them in its forward.
struct ReaderImpl : torch::nn::Module {
  explicit ReaderImpl(std::int64_t large)
      : tables(register_module("tables", Tables(large))),
        last(register_module("last", nn::Linear(4, 4))) {
    widen(*this);
  }
  Tensor forward(const Tensor& x) {
    auto y = tables(x).masked_fill(tables->mask, 0.5);
    y = y.index_select(1, tables->positions.squeeze(0).flip(0)) * tables->scale;
    y = y + torch::real(tables->turn) + tables->half;
    if (tables->scale[3].item<double>() > 1.5) y = y * 1.5;  // NaN > 1.5 is false
    y = y * tables->scale.accessor<double, 1>()[1];
    if (!tables->nothing.defined()) y = y + tables->big[-1];
    return last(y);
  }
  Tables tables;
  nn::Linear last;
};
SMP_MODULE(Reader);

/// A reader whose tables live on the second rank.
struct PlacedReader {
  explicit PlacedReader(std::int64_t large = 8) : net(large), model(net) {
    model.set_partition("tables", 1);
  }
  Reader net;
  DistributedModel<Reader> model;
};

}  // namespace smp::buffer_tests
