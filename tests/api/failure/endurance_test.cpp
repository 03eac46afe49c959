// Many steps with random message delays: nothing hangs, nothing is left over, and neither delays
// nor the order of events changes a bit of the result (docs/design.md, Order).
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "api/rank/rank.h"
#include "api/two_ranks.h"

namespace smp {
namespace endurance_test {

using at::Tensor;

// (rank, microbatch) of every execution, in the order in which they happened. Ranks of run_local
// share one thread.
std::vector<std::pair<int, int>> executions;

struct CellImpl : torch::nn::Module {
  CellImpl() : linear(register_module("linear", nn::Linear(6, 6))), drop(nn::Dropout(0.2)) {
    register_module("drop", drop);
  }
  Tensor forward(const Tensor& x) {
    executions.emplace_back(pp_rank(), current_microbatch());
    return drop(linear(x).tanh());
  }
  nn::Linear linear;
  nn::Dropout drop;
};
SMP_MODULE(Cell);

struct OuterImpl : torch::nn::Module {
  OuterImpl() : own(register_module("own", Cell())), inner(register_module("inner", Cell())) {}
  Tensor forward(const Tensor& x) { return own(x) + inner(x); }
  Cell own, inner;
};
SMP_MODULE(Outer);

// Nested calls, a module used twice, and one that only some microbatches call.
struct WebImpl : torch::nn::Module {
  WebImpl()
      : outer(register_module("outer", Outer())),
        shared(register_module("shared", Cell())),
        rare(register_module("rare", Cell())) {}
  Tensor forward(const Tensor& x) {
    auto y = shared(outer(x));
    if (y.sum().item<float>() > 0) y = y + rare(x);
    return shared(y);
  }
  Outer outer;
  Cell shared, rare;
};
SMP_MODULE(Web);

struct Result {
  std::vector<double> losses;
  std::map<std::string, Tensor> tensors;  // parameters and last gradients
  std::vector<std::pair<int, int>> executions;
};

Tensor batch(int step) {
  return torch::sin(torch::arange(8 * 6, torch::kFloat).reshape({8, 6}) * (step + 1));
}

void expect_nothing_left() {
  const auto& server = Rank::current().server().core();
  EXPECT_EQ(server.step, nullptr);
  EXPECT_EQ(server.counters.records_left, 0u);
  EXPECT_EQ(server.workers.busy(), 0u);
  EXPECT_EQ(server.accumulator.waiting().bytes(), 0u);
}

Result train(int steps, std::uint64_t seed, double mean_delay) {
  Result result;
  executions.clear();
  Config config;
  config.microbatches = 4;
  const auto rank_main = [&] {
    torch::manual_seed(5);
    Web net;
    DistributedModel model(net);
    model.set_partition("outer", 1);
    model.set_partition("outer.inner", 2);
    model.set_partition("rare", 3);
    DistributedOptimizer optimizer(
        model, torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
    auto step = smp::step([&](Tensor x) {
      auto loss = model(x).square().mean();
      model.backward(loss);
      return loss;
    });
    for (int i = 0; i < steps; ++i) {
      optimizer.zero_grad();
      const double loss = step(batch(i)).reduce_mean().item<double>();
      if (rank() == 0) result.losses.push_back(loss);
      optimizer.step();
    }
    for (const auto& [name, parameter] : model.local_named_parameters()) {
      result.tensors[name] = parameter.detach().clone();
      if (parameter.grad().defined()) result.tensors[name + ".grad"] = parameter.grad().clone();
    }
    barrier();
    expect_nothing_left();
  };
  run_local(4, rank_main, config, {.seed = seed, .mean_delay = mean_delay});
  result.executions = executions;
  return result;
}

void expect_same_bits(const Result& a, const Result& b) {
  EXPECT_EQ(a.losses, b.losses);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) {
    EXPECT_TRUE(at::equal(tensor, b.tensors.at(name))) << name;
  }
}

TEST(Endurance, TwoHundredStepsLeaveNothingBehind) {
  const auto result = train(200, 7, 1e-3);
  ASSERT_EQ(result.losses.size(), 200u);
  EXPECT_LT(result.losses.back(), result.losses.front());
}

TEST(Endurance, TimingChangesTheOrderOfEventsButNoBit) {
  const auto first = train(20, 0, 1e-4);
  bool order_differs = false;
  for (std::uint64_t seed = 1; seed < 10; ++seed) {
    const auto other = train(20, seed, 1e-4);
    expect_same_bits(first, other);
    order_differs |= other.executions != first.executions;
  }
  EXPECT_TRUE(order_differs);
}

TEST(Endurance, TheSameSeedGivesTheSameRun) {
  const auto first = train(10, 3, 1e-4);
  const auto second = train(10, 3, 1e-4);
  expect_same_bits(first, second);
  EXPECT_EQ(first.executions, second.executions);
}

}  // namespace endurance_test
}  // namespace smp
