// Bodies that differentiate gradients, in steps on several ranks and in one process of plain
// LibTorch.
#pragma once

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "api/chain_model.h"

namespace smp {

/// LibTorch's grad() in one process, smp::grad() in a step; both permit unused inputs.
inline std::vector<at::Tensor> differentiate(const std::vector<at::Tensor>& outputs,
                                             const std::vector<at::Tensor>& inputs,
                                             const std::vector<at::Tensor>& grad_outputs = {},
                                             bool create_graph = true) {
  if (is_initialized()) {
    return smp::grad(outputs, inputs, grad_outputs, true, create_graph, true);
  }
  return torch::autograd::grad(outputs, inputs, grad_outputs, true, create_graph, true);
}

inline at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().requires_grad_(); }

/// (|dy/dx| - 1)^2, as Wasserstein GANs with a gradient penalty have it.
inline at::Tensor slope_penalty(const at::Tensor& gradient) {
  return (gradient.norm(2, 1) - 1).square().mean();
}

/// How a program of second derivatives is run on several ranks.
struct SecondDerivatives {
  std::vector<std::pair<std::string, int>> places;  ///< of modules: the stage, modulo the ranks
  int ranks = 2;
  int microbatches = 2;
  int steps = 1;
  int replicas = 1;
  int rows = 3;  ///< of a microbatch
  Config config = {};
};

using LossBackward = std::function<void(const at::Tensor& loss)>;

/// Runs `body(net, x, backward)` on every microbatch of some steps, in one process of plain
/// LibTorch and on several ranks; compares every gradient.
template <class Net, class Body>
void expect_as_in_one_process(const std::function<Net()>& make, SecondDerivatives how,
                              const Body& body) {
  const auto x = rows(how.rows * how.microbatches * how.replicas);
  std::map<std::string, at::Tensor> expected;
  auto plain = make();
  for (int step = 0; step < how.steps; ++step) {
    const auto microbatches = how.microbatches * how.replicas;
    for (const auto& slice : x.chunk(microbatches)) {
      body(plain, slice, [&](const at::Tensor& loss) { (loss / microbatches).backward(); });
    }
  }
  for (const auto& item : plain->named_parameters()) expected[item.key()] = item.value().grad();
  how.config.microbatches = how.microbatches;
  how.config.plan_cache = "off";
  how.config.pipeline_parallel_degree = how.ranks;
  run_local(how.ranks * how.replicas,
            [&] {
              auto net = make();
              DistributedModel<Net> model(net);
              model.set_partition("", 0);
              for (const auto& [name, stage] : how.places) {
                model.set_partition(name, stage % how.ranks);
              }
              auto train = smp::step([&](at::Tensor slice) {
                body(net, slice, [&](const at::Tensor& loss) { model.backward(loss); });
              });
              const auto own = x.chunk(how.replicas)[dp_rank()];
              for (int step = 0; step < how.steps; ++step) train(own);
              for (auto& [name, parameter] : model.local_named_parameters()) {
                expect_close(parameter.grad(), expected.at(name), name);
              }
            },
            how.config, {.seed = 5});
}

/// A chain of three layers, on 1 to 3 ranks, under all schedules.
template <class Body>
void expect_chain_as_in_one_process(const Body& body) {
  for (const char* schedule :
       {"simple", "interleaved", "1f1b", "1f1b+1", "zero_bubble", "zero_bubble+2"}) {
    for (const int ranks : {1, 2, 3}) {
      SCOPED_TRACE(std::string(schedule) + ", " + std::to_string(ranks) + " ranks");
      SecondDerivatives how{{{"b", 1}, {"c", 2}}, ranks, 3};
      how.config.pipeline = schedule;
      expect_as_in_one_process<Chain>([] { return make_chain(); }, how, body);
    }
  }
}

}  // namespace smp
