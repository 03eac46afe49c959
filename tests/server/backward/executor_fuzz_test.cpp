// tests/server/backward/executor_fuzz_test.cpp: random graphs, random cuts and random delays of
// replies, against LibTorch's own engine.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "server/backward/executor_testing.h"

namespace smp::server::test {
namespace {

constexpr int kGraphs = 300;
constexpr int kTimings = 3;
constexpr int kLeaves = 4;

/// The operations that random graphs are made of; each gives one or two tensors.
Tensors operate(int operation, const Tensors& x) {
  switch (operation) {
    case 0:
      return {x[0] + x[1] * 0.5};
    case 1:
      return {x[0] * x[1]};
    case 2:
      return {x[0].mm(x[1]).tanh()};
    case 3:
      return {x[0].sin(), x[1].t() * 0.3};
    case 4:
      return {x[0] - x[0].mean() + x[1].relu()};
    default:
      return {at::softmax(x[0], 1), x[1].detach()};
  }
}
constexpr int kOperations = 6;

/// A random graph; the same seed gives the same graph, whatever the cuts and delays.
class RandomGraph {
 public:
  RandomGraph(int seed, bool cut, int timing) : random_(seed), cut_(cut), timing_(timing) {}

  at::Tensor build(const Tensors& leaves) {
    values_ = leaves;
    const int operations = 5 + draw(25);
    for (int i = 0; i < operations; ++i) add_operation(i);
    auto loss = values_[0].sum() * 0.1;
    for (int i = 1; i <= 4; ++i) loss = loss + values_[values_.size() - i].pow(2).mean();
    return loss;
  }

 private:
  void add_operation(int number) {
    const auto a = draw_value(), b = draw_value();
    const int operation = draw(kOperations);
    const bool remote = draw(3) == 0;
    const int yields = 1 + (number * 7 + timing_ * 5 + draw(4)) % 11;
    const auto body = [operation](const Tensors& x) { return operate(operation, x); };
    const auto results =
        call(cut_ && remote && (a.requires_grad() || b.requires_grad()), {a, b}, body, {yields});
    values_.insert(values_.end(), results.begin(), results.end());
  }

  int draw(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  at::Tensor draw_value() { return values_[random_() % values_.size()]; }

  std::mt19937 random_;
  bool cut_;
  int timing_;
  Tensors values_;
};

Tensors gradients(Engine engine, int seed, bool cut, int timing = 0) {
  const auto parameters = leaves(kLeaves, seed, 3, 3);
  backward(engine, {RandomGraph(seed, cut, timing).build(parameters)});
  return gradients_of(parameters);
}

TEST(ExecutorFuzz, LocalGraphsGiveTheBitsOfLibTorchsEngine) {
  for (int seed = 0; seed < kGraphs; ++seed) {
    EXPECT_TRUE(
        same_bits(gradients(Engine::kStock, seed, false), gradients(Engine::kOurs, seed, false)))
        << "graph " << seed;
  }
}

TEST(ExecutorFuzz, CutGraphsAgreeWithLibTorchsEngine) {
  int equal_bits = 0;
  for (int seed = 0; seed < kGraphs; ++seed) {
    const auto expected = gradients(Engine::kStock, seed, false);
    const auto actual = gradients(Engine::kOurs, seed, true);
    EXPECT_TRUE(close(expected, actual)) << "graph " << seed;
    equal_bits += same_bits(expected, actual);
  }
  // Not all: a boundary sums the uses inside it first, which re-associates some sums.
  RecordProperty("graphs_with_equal_bits", equal_bits);
}

TEST(ExecutorFuzz, TimingOfRepliesNeverChangesBits) {
  for (int seed = 0; seed < kGraphs; ++seed) {
    const auto expected = gradients(Engine::kOurs, seed, true, 0);
    for (int timing = 1; timing <= kTimings; ++timing) {
      EXPECT_TRUE(same_bits(expected, gradients(Engine::kOurs, seed, true, timing)))
          << "graph " << seed << ", timing " << timing;
    }
  }
}

TEST(ExecutorFuzz, GradOfRandomGraphsGivesTheBitsOfLibTorchsEngine) {
  for (int seed = 0; seed < kGraphs; ++seed) {
    const auto by = [&](Engine engine) {
      const auto parameters = leaves(kLeaves, seed, 3, 3);
      const auto loss = RandomGraph(seed, false, 0).build(parameters);
      return grad(engine, {loss}, {parameters[0], parameters[2]});
    };
    EXPECT_TRUE(same_bits(by(Engine::kStock), by(Engine::kOurs))) << "graph " << seed;
  }
}

/// What a backward over an execution gives: gradients of its arguments and of its parameters.
Tensors gradients_of_execution(int seed, int timing, bool in_two_parts) {
  auto values = leaves(kLeaves, seed, 3, 3);
  const Tensors parameters{values[2], values[3]};
  Tensors arguments{values[0].detach(), values[1].detach()};
  const auto boundary = make_boundary(arguments, {true, true});
  const auto loss =
      RandomGraph(seed, true, timing).build({arguments[0], arguments[1], values[2], values[3]});
  if (in_two_parts) {
    auto rest = run_input_part(edges_of({loss}), {at::ones_like(loss)}, {});
    const auto captured = boundary->captured;
    EXPECT_FALSE(parameters[0].grad().defined() || parameters[1].grad().defined())
        << "graph " << seed;
    if (rest) rest.run();
    EXPECT_TRUE(same_bits(captured, boundary->captured)) << "graph " << seed;
  } else {
    backward(Engine::kOurs, {loss});
  }
  auto all = gradients_of(parameters);
  all.insert(all.end(), boundary->captured.begin(), boundary->captured.end());
  return all;
}

TEST(ExecutorFuzz, TwoPartsGiveTheBitsOfOne) {
  for (int seed = 0; seed < kGraphs; ++seed) {
    const auto expected = gradients_of_execution(seed, 0, false);
    for (int timing = 0; timing < kTimings; ++timing) {
      EXPECT_TRUE(same_bits(expected, gradients_of_execution(seed, timing, true)))
          << "graph " << seed << ", timing " << timing;
    }
  }
}

TEST(ExecutorFuzz, RetainedCutGraphsGiveTheSameGradientsAgain) {
  for (int seed = 0; seed < kGraphs / 3; ++seed) {
    const auto parameters = leaves(kLeaves, seed, 3, 3);
    const auto loss = RandomGraph(seed, true, 0).build(parameters);
    backward(loss, {.keep_graph = true});
    auto first = gradients_of(parameters);
    for (auto& gradient : first) {
      if (gradient.defined()) gradient = gradient.clone();
    }
    for (const auto& parameter : parameters) parameter.mutable_grad().reset();
    backward(loss);
    EXPECT_TRUE(same_bits(first, gradients_of(parameters))) << "graph " << seed;
  }
}

}  // namespace
}  // namespace smp::server::test
