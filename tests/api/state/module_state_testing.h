// Programs with stateful modules, run by plain LibTorch and over ranks.
#pragma once

#include <torch/optim/sgd.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "api/state/stateful_modules.h"
#include "api/two_ranks.h"

namespace smp {
namespace module_state_test {

constexpr int kSteps = 3;
constexpr int kMicrobatches = 4;

template <class Net>
struct Program {
  using Forward = std::function<Tensor(const Tensor&)>;
  std::function<Tensor(Net&, const Forward&, const Tensor&)> loss =
      [](Net&, const Forward& forward, const Tensor& x) { return forward(x).pow(2).mean(); };
  std::function<void(Net&)> after_backward = [](Net&) {};
  std::function<void(Net&)> setup = [](Net&) {};

  Net make() const {
    torch::manual_seed(11);
    Net net;
    net->to(torch::kDouble);
    setup(net);
    return net;
  }
};

struct Outcome {
  std::vector<double> losses;
  std::map<std::string, Tensor> tensors;
};

inline Tensor batch(int step) {
  return torch::sin(torch::arange(8 * kWidth, torch::kDouble) * 0.37 + step).reshape({8, kWidth});
}

template <class Net>
Outcome in_one_process(const Program<Net>& program) {
  Outcome outcome;
  auto net = program.make();
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  for (int s = 0; s < kSteps; ++s) {
    optimizer.zero_grad();
    double mean = 0;
    for (const auto& x : batch(s).tensor_split(kMicrobatches)) {
      const auto loss = program.loss(
          net, [&](const Tensor& in) { return net(in); }, x);
      mean += loss.template item<double>() / kMicrobatches;
      (loss / kMicrobatches).backward();
      program.after_backward(net);
    }
    outcome.losses.push_back(mean);
    for (const auto& item : net->named_parameters()) {
      outcome.tensors[std::to_string(s) + item.key()] = item.value().grad().clone();
    }
    optimizer.step();
  }
  for (const auto& item : net->named_parameters()) outcome.tensors[item.key()] = item.value();
  for (const auto& item : net->named_buffers()) outcome.tensors[item.key()] = item.value();
  return outcome;
}

/// @param pins  modules by hand
template <class Net>
Outcome on_this_rank(const Program<Net>& program, const std::map<std::string, int>& pins = {}) {
  Outcome outcome;
  auto net = program.make();
  DistributedModel model(net);
  for (const auto& [path, stage] : pins) model.set_partition(path, stage);
  DistributedOptimizer optimizer(model, torch::optim::SGD(model.parameters(), 0.05));
  auto train = smp::step([&](const Tensor& x) {
    const auto loss = program.loss(
        net, [&](const Tensor& in) { return model(in); }, x);
    model.backward(loss);
    program.after_backward(net);
    return loss;
  });
  for (int s = 0; s < kSteps; ++s) {
    optimizer.zero_grad();
    outcome.losses.push_back(train(batch(s)).reduce_mean().template item<double>());
    for (const auto& [name, parameter] : model.local_named_parameters()) {
      outcome.tensors[std::to_string(s) + name] = parameter.grad().clone();
    }
    optimizer.step();
  }
  for (const auto& [name, tensor] : model.local_named_parameters()) outcome.tensors[name] = tensor;
  for (const auto& [name, tensor] : model.local_named_buffers()) outcome.tensors[name] = tensor;
  return outcome;
}

inline void expect_equal(const Outcome& ours, const Outcome& reference) {
  ASSERT_EQ(ours.losses.size(), reference.losses.size());
  for (std::size_t i = 0; i < ours.losses.size(); ++i) {
    EXPECT_NEAR(ours.losses[i], reference.losses[i], 1e-12) << "loss of step " << i;
  }
  for (const auto& [name, tensor] : ours.tensors) {
    ASSERT_TRUE(reference.tensors.count(name)) << name;
    EXPECT_LE((tensor - reference.tensors.at(name)).abs().max().item<double>(), 1e-12) << name;
  }
}

inline Config config_of(const std::string& pipeline) {
  Config config;
  config.microbatches = kMicrobatches;
  config.plan_cache = "off";
  config.pipeline = pipeline;
  config.partition_strategy = "tree";
  return config;
}

template <class Net>
void expect_as_in_one_process(const Program<Net>& program = {},
                              const std::map<std::string, int>& pins = {}, int most_ranks = 4,
                              bool trial = true) {
  const auto reference = in_one_process(program);
  for (int ranks = pins.empty() ? 1 : most_ranks; ranks <= most_ranks; ++ranks) {
    for (const char* pipeline : {"simple", "interleaved"}) {
      for (const std::uint64_t seed : {1, 2, 3}) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, " << pipeline << ", seed " << seed);
        auto config = config_of(pipeline);
        config.skip_tracing = !trial;
        run_local(ranks, [&] { expect_equal(on_this_rank(program, pins), reference); }, config,
                  {.seed = seed, .mean_delay = 1e-4});
      }
    }
  }
}

}  // namespace module_state_test
}  // namespace smp
