// A chain of three layers on up to three ranks, and a comparison of what a step's body does to it
// with the same body in one process of plain LibTorch.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <map>
#include <string>
#include <utility>

#include "api/far_model.h"
#include "api/two_ranks.h"

namespace smp {

struct LayerImpl : torch::nn::Module {
  LayerImpl(int from, int to_) : linear(register_module("linear", nn::Linear(from, to_))) {
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return linear(x).tanh(); }
  nn::Linear linear;
};
SMP_MODULE(Layer);

struct ChainImpl : torch::nn::Module {
  ChainImpl()
      : a(register_module("a", Layer(3, 4))),
        b(register_module("b", Layer(4, 4))),
        c(register_module("c", Layer(4, 2))) {}
  at::Tensor forward(const at::Tensor& x) { return c(b(a(x))); }
  Layer a, b, c;
};
SMP_MODULE(Chain);

inline Chain make_chain() {
  torch::manual_seed(7);
  return {};
}

/// Of a body under comparison: what it calls instead of model.backward().
using Backward =
    std::function<void(const at::Tensor& loss, const at::Tensor& gradient, bool retain_graph)>;

inline void expect_close(const at::Tensor& got, const at::Tensor& expected,
                         const std::string& name) {
  ASSERT_EQ(got.defined(), expected.defined()) << name;
  if (got.defined()) {
    EXPECT_TRUE(at::allclose(got, expected, 1e-12, 1e-14)) << name << "\n" << got << expected;
  }
}

/// Runs `body(net, model call, x, backward)` on every microbatch of one step on 1 to 3 ranks, all
/// schedules, and in plain LibTorch; compares every gradient. `prepare(net)` runs first.
template <class Body, class Prepare>
void expect_equal_gradients(const Body& body, const Prepare& prepare) {
  constexpr int kMicrobatches = 3;
  const auto x = rows(6);
  auto plain = make_chain();
  prepare(plain);
  int microbatch = 0;
  for (const auto& slice : x.chunk(kMicrobatches)) {
    body(
        plain, [&](const at::Tensor& t) { return plain(t); }, slice,
        [](const at::Tensor& loss, const at::Tensor& gradient, bool retain) {
          const auto scaled = (gradient.defined() ? gradient : at::ones_like(loss)) / kMicrobatches;
          loss.backward(scaled, retain);
        },
        microbatch++);
  }
  for (const char* schedule : {"simple", "interleaved", "1f1b", "zero_bubble"}) {
    for (const int ranks : {1, 2, 3}) {
      SCOPED_TRACE(std::string(schedule) + ", " + std::to_string(ranks) + " ranks");
      Config config;
      config.microbatches = kMicrobatches;
      config.plan_cache = "off";
      config.pipeline = schedule;
      run_local(ranks,
                [&] {
                  auto net = make_chain();
                  prepare(net);
                  DistributedModel<Chain> model(net);
                  model.set_partition("", 0);
                  model.set_partition("b", 1 % size());
                  model.set_partition("c", 2 % size());
                  auto train = smp::step([&](at::Tensor slice) {
                    if (is_tracing()) return;
                    body(
                        net, [&](const at::Tensor& t) { return model(t); }, slice,
                        [&](const at::Tensor& loss, const at::Tensor& gradient, bool retain) {
                          model.backward(loss, gradient, retain);
                        },
                        current_microbatch());
                  });
                  train(x);
                  const auto expected = plain->named_parameters();
                  for (auto& [name, parameter] : model.local_named_parameters()) {
                    expect_close(parameter.grad(), expected[name].grad(), name);
                  }
                },
                config, {.seed = 5});
    }
  }
}

template <class Body>
void expect_equal_gradients(const Body& body) {
  expect_equal_gradients(body, [](Chain&) {});
}

}  // namespace smp
