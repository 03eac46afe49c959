// What a step does with its arguments and outputs: splitting, weights, gradients that leave the
// step, and what every rank gets back (paper §4.3, §4.8).
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include "api/runtime.h"
#include "api/two_ranks.h"

namespace smp {
namespace {

using at::Tensor;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

Tensor rows(std::int64_t count, std::int64_t width = 3) {
  return torch::linspace(-1, 1, count * width, torch::kDouble).reshape({count, width});
}

std::vector<std::int64_t> lengths(const std::vector<Tensor>& tensors, int axis = 0) {
  std::vector<std::int64_t> result;
  for (const auto& tensor : tensors) result.push_back(tensor.size(axis));
  return result;
}

// ---- splitting --------------------------------------------------------------------------------

struct Batch {
  Tensor tokens;
  std::optional<Tensor> mask;
  std::map<std::string, Tensor> extra;
  std::vector<std::tuple<Tensor, int>> parts;
};

TEST(StepArguments, TensorsAreSplitWhereverTheyAre) {
  on_ranks(2, [] {
    const auto x = rows(4);
    const Batch batch{x, x + 10, {{"a", x + 20}, {"b", {}}}, {{x + 30, 7}}};
    auto look = smp::step([](Batch own, std::pair<Tensor, std::string> other) {
      EXPECT_EQ(own.tokens.size(0), 2);
      EXPECT_FALSE(own.extra.at("b").defined());
      EXPECT_EQ(std::get<1>(own.parts.at(0)), 7);
      EXPECT_EQ(other.second, "same");
      return std::tuple(own.tokens, *own.mask, own.extra.at("a"), std::get<0>(own.parts[0]),
                        other.first);
    });
    const auto seen = look(batch, std::pair(x + 40, std::string("same")));
    EXPECT_TRUE(at::equal(std::get<0>(seen).concat(), x));
    EXPECT_TRUE(at::equal(std::get<1>(seen).concat(), x + 10));
    EXPECT_TRUE(at::equal(std::get<2>(seen).concat(), x + 20));
    EXPECT_TRUE(at::equal(std::get<3>(seen).concat(), x + 30));
    EXPECT_TRUE(at::equal(std::get<4>(seen).concat(), x + 40));
  });
}

TEST(StepArguments, AnArgumentHasItsOwnAxis) {
  on_ranks(1, [] {
    StepOptions options;
    options.split_axes = {{1, 1}, {2, -1}};
    auto look =
        smp::step([](Tensor x, Tensor y, Tensor z) { return std::tuple(x, y, z); }, options);
    const auto [x, y, z] = look(rows(4), rows(2, 4), rows(5, 4));
    EXPECT_THAT(lengths(x.outputs(), 0), Each(2));
    EXPECT_THAT(lengths(y.outputs(), 1), Each(2));
    EXPECT_TRUE(at::equal(z.concat(1), rows(5, 4)));
  });
}

TEST(StepArguments, AnArgumentThatIsNotSplitComesWhole) {
  on_ranks(1, [] {
    StepOptions options;
    options.non_split = {1};
    auto look = smp::step([](Tensor x, Tensor whole) { return std::tuple(x, whole); }, options);
    const auto [x, whole] = look(rows(4), rows(3));
    EXPECT_THAT(lengths(x.outputs()), Each(2));
    EXPECT_THAT(lengths(whole.outputs()), Each(3));
  });
}

TEST(StepArguments, ValuesOfOtherTypesArePassedAsTheyAre) {
  on_ranks(2, [] {
    int calls = 0;
    struct Opaque {
      int* counter;
    } opaque{&calls};
    auto look = smp::step([](Tensor, Opaque& own) { ++*own.counter; });
    look(rows(4), opaque);
    EXPECT_EQ(calls, rank() == 0 ? 2 : 0);
  });
}

TEST(StepArguments, WithoutArgumentsEveryMicrobatchRuns) {
  on_ranks(2, [] {
    auto number = smp::step([] { return current_microbatch(); });
    const auto output = number();
    EXPECT_THAT(output.outputs(), ElementsAre(0, 1));
    EXPECT_THAT(output.weights(), ElementsAre(0.5, 0.5));
    EXPECT_EQ(current_microbatch(), -1);
  });
}

TEST(StepArguments, OnlyThoseOfRankZeroAreRead) {
  on_ranks(2, [] {
    auto look = smp::step([](Tensor x) { return x; });
    const auto output = look(rank() == 0 ? rows(4) : Tensor());
    EXPECT_TRUE(at::equal(output.concat(), rows(4)));
  });
}

// ---- batches that do not divide ---------------------------------------------------------------

TEST(StepArguments, AnUnevenBatchIsWeightedByItsRows) {
  on_ranks(
      2,
      [] {
        auto mean = smp::step([](Tensor x) { return std::tuple(x, x.mean()); });
        const auto [x, loss] = mean(rows(7));
        EXPECT_THAT(lengths(x.outputs()), ElementsAre(3, 2, 2));
        EXPECT_THAT(loss.weights(), ElementsAre(3.0 / 7, 2.0 / 7, 2.0 / 7));
        EXPECT_TRUE(at::allclose(loss.reduce_mean(), rows(7).mean(), 1e-12, 1e-14));
        EXPECT_TRUE(at::equal(x.concat(), rows(7)));
      },
      3);
}

TEST(StepArguments, FewerRowsMakeFewerMicrobatches) {
  on_ranks(
      2,
      [] {
        auto look = smp::step([](Tensor x) { return x; });
        EXPECT_THAT(lengths(look(rows(2)).outputs()), ElementsAre(1, 1));
        EXPECT_THAT(lengths(look(rows(4)).outputs()), ElementsAre(1, 1, 1, 1));
      },
      4);
}

TEST(StepArguments, RowsThatDifferAreRefusedOnEveryRank) {
  on_ranks(2, [] {
    auto look = smp::step([](Tensor, Tensor) {});
    EXPECT_THAT(refused_step<UsageError>(0, [&] { look(rows(4), rows(3)); }),
                AllOf(HasSubstr("argument 1 of the step has 3 rows"), HasSubstr("argument 0 has 4"),
                      HasSubstr("non_split")));
    look(rows(4), rows(4));
  });
}

TEST(StepArguments, WhatCannotBeSplitIsRefused) {
  on_ranks(2, [] {
    auto look = smp::step([](Tensor) {});
    EXPECT_THAT(refused_step<UsageError>(0, [&] { look(torch::ones({})); }),
                AllOf(HasSubstr("argument 0"), HasSubstr("along axis 0"), HasSubstr("non_split")));
    EXPECT_THAT(refused_step<UsageError>(0, [&] { look(rows(0)); }), HasSubstr("no rows"));
    StepOptions options;
    options.split_axes = {{0, 2}};
    auto beyond = smp::step([](Tensor) {}, options);
    EXPECT_THAT(refused_step<UsageError>(0, [&] { beyond(rows(4)); }),
                AllOf(HasSubstr("[4, 3]"), HasSubstr("along axis 2")));
    look(rows(4));
  });
}

// ---- changes in place -------------------------------------------------------------------------

TEST(StepArguments, AWholeArgumentIsNotChangedInPlace) {
  on_ranks(2, [] {
    StepOptions options;
    options.non_split = {1};
    auto change = smp::step([](Tensor, Tensor whole) { whole.add_(1); }, options);
    EXPECT_THAT(refused_step<UsageError>(0, [&] { change(rows(4), rows(3)); }),
                AllOf(HasSubstr("argument 1"), HasSubstr("in place"), HasSubstr("clone it")));
  });
}

struct FarImpl : torch::nn::Module {
  FarImpl() : linear(register_module("linear", nn::Linear(3, 2))) { to(torch::kDouble); }
  Tensor forward(const Tensor& x) { return linear(x).tanh(); }
  nn::Linear linear;
};
SMP_MODULE(Far);

struct TopImpl : torch::nn::Module {
  TopImpl() : far(register_module("far", Far())) {}
  Tensor forward(const Tensor& x) { return far(x); }
  Far far;
};
SMP_MODULE(Top);

// A model whose parameters live on the last rank.
struct FarModel {
  FarModel() : net(make()), model(net) {
    model.set_partition("", 0);
    model.set_partition("far", size() - 1);
  }
  static Top make() {
    torch::manual_seed(3);
    return {};
  }
  Far& far() { return net->far; }
  Top net;
  DistributedModel<Top> model;
};

TEST(StepArguments, AChangeInPlaceStaysInItsMicrobatch) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    on_ranks(
        2,
        [] {
          FarModel own;
          const auto scale = torch::full({3}, 2.0, torch::kDouble).requires_grad_();
          auto train = smp::step([&](Tensor x) {
            if (current_microbatch() == 1) x.mul_(3);
            auto loss = own.model(x * scale).sum();  // saves x, then waits for the other rank
            own.model.backward(loss);
            return loss;
          });
          const auto x = rows(4);
          train(x);
          if (rank() != 0) return;
          auto expected = rows(4);
          expected.narrow(0, 2, 2).mul_(3);
          EXPECT_TRUE(at::equal(x, expected));  // as in plain LibTorch
          const auto plain_scale = scale.detach().clone().requires_grad_();
          (FarModel::make()(expected * plain_scale).sum() / 2).backward();
          EXPECT_TRUE(at::allclose(scale.grad(), plain_scale.grad(), 1e-12, 1e-14));
        },
        2, seed);
  }
}

// ---- gradients that leave the step ------------------------------------------------------------

// Leaves outside of the step, and what is computed from them before it.
struct Outside {
  Tensor leaf = rows(6).requires_grad_();
  Tensor whole_leaf = rows(1).requires_grad_();
  Tensor x = leaf.tanh();
  Tensor whole = whole_leaf.sigmoid();
};

Tensor outside_loss(const Tensor& y) { return y.square().sum() + y.sum(); }

// One process: the outside graph meets the microbatches at copies, in order, and runs once.
Outside in_one_process(int microbatches, int passes) {
  Outside outside;
  auto net = FarModel::make();
  auto whole = outside.whole.detach().requires_grad_();
  const auto x = outside.x.detach().requires_grad_();
  for (const auto& slice : x.chunk(microbatches)) {
    for (int pass = 0; pass < passes; ++pass) {
      (outside_loss(net(slice * whole)) * slice.size(0) / 6.0).backward();
    }
  }
  torch::autograd::backward({outside.x, outside.whole}, {x.grad(), whole.grad()});
  return outside;
}

// Trains on arguments with history; `body` gets (model, slice, whole).
template <class Body>
void expect_outside_gradients(int passes, const Body& body) {
  const auto expected = in_one_process(3, passes);
  for (const int ranks : {1, 2}) {
    on_ranks(
        ranks,
        [&] {
          FarModel own;
          Outside outside;
          int hook_calls = 0;
          outside.x.register_hook([&](const Tensor&) { ++hook_calls; });
          StepOptions options;
          options.non_split = {1};
          auto train =
              smp::step([&](Tensor x, Tensor whole) { body(own.model, x, whole); }, options);
          train(outside.x, outside.whole);
          EXPECT_EQ(hook_calls, rank() == 0 ? 1 : 0);
          if (rank() != 0) return;
          EXPECT_TRUE(at::equal(outside.leaf.grad(), expected.leaf.grad()));
          // Passes of one microbatch are summed first.
          const double tolerance = passes == 1 ? 0 : 1e-14;
          EXPECT_TRUE(at::allclose(outside.whole_leaf.grad(), expected.whole_leaf.grad(), tolerance,
                                   tolerance));
        },
        3);
  }
}

TEST(StepArguments, GradientsOfArgumentsEqualThoseOfOneProcess) {
  expect_outside_gradients(1, [](auto& model, Tensor x, Tensor whole) {
    model.backward(outside_loss(model(x * whole)));
  });
}

TEST(StepArguments, GradientsOfArgumentsAddUpOverBackwardPasses) {
  expect_outside_gradients(2, [](auto& model, Tensor x, Tensor whole) {
    model.backward(outside_loss(model(x * whole)));
    model.backward(outside_loss(model(x * whole)));
  });
}

TEST(StepArguments, AChangeInPlaceDoesNotReachTheGraphOutside) {
  expect_outside_gradients(1, [](auto& model, Tensor x, Tensor whole) {
    const auto copy = x * 1.0;
    x.mul_(0);
    model.backward(outside_loss(model(copy * whole)));
  });
}

TEST(StepArguments, WithoutGradModeNothingLeavesTheStep) {
  on_ranks(2, [] {
    FarModel own;
    Outside outside;
    const at::NoGradGuard no_grad;
    auto predict = smp::step([&](Tensor x) { return own.model(x); });
    EXPECT_FALSE(predict(outside.x).concat().requires_grad());
    EXPECT_FALSE(outside.leaf.grad().defined());
    const auto& server = Runtime::current().server();
    EXPECT_EQ(server.live_records(), 0u);
    EXPECT_EQ(server.counters().backward_requests, 0u);
    EXPECT_EQ(server.counters().executed_forward, rank() == 1 ? 2u : 0u);
    EXPECT_FALSE(at::GradMode::is_enabled());
  });
}

TEST(StepArguments, GradModeIsThatOfTheCallerAtEachStep) {
  on_ranks(2, [] {
    FarModel own;
    auto run = smp::step([&](Tensor x) {
      const auto y = own.model(x);
      if (at::GradMode::is_enabled()) own.model.backward(y.sum());
      return y.requires_grad();
    });
    {
      const at::NoGradGuard no_grad;
      EXPECT_THAT(run(rows(4)).outputs(), Each(false));
    }
    EXPECT_THAT(run(rows(4)).outputs(), Each(true));
    EXPECT_EQ(own.far()->linear->weight.grad().defined(), rank() == 1);
  });
}

// ---- weights of the losses --------------------------------------------------------------------

// The gradient of the bias after a step over 5 rows in 2 microbatches, with loss = sum of outputs.
Tensor bias_gradient(const StepOptions& options) {
  Tensor gradient;
  on_ranks(2, [&] {
    FarModel own;
    auto train = smp::step(
        [&](Tensor x) {
          auto loss = own.model(x).sum();
          own.model.backward(loss);
          return loss;
        },
        options);
    train(rows(5));
    if (rank() == 1) gradient = own.far()->linear->bias.grad().clone();
  });
  return gradient;
}

Tensor plain_bias_gradient(double first, double second) {
  auto net = FarModel::make();
  const auto x = rows(5);
  (net(x.narrow(0, 0, 3)).sum() * first).backward();
  (net(x.narrow(0, 3, 2)).sum() * second).backward();
  return net->far->linear->bias.grad();
}

TEST(StepArguments, LossesAreWeightedAsAskedFor) {
  StepOptions options;
  EXPECT_TRUE(at::allclose(bias_gradient(options), plain_bias_gradient(3.0 / 5, 2.0 / 5)));
  options.loss = "sum";
  EXPECT_TRUE(at::allclose(bias_gradient(options), plain_bias_gradient(1, 1)));
  options.loss = "weights";
  options.weights = {0.25, 4};
  EXPECT_TRUE(at::allclose(bias_gradient(options), plain_bias_gradient(0.25, 4)));
}

TEST(StepArguments, WeightsThatDoNotFitAreRefused) {
  on_ranks(2, [] {
    StepOptions options;
    options.loss = "weights";
    options.weights = {1, 2, 3};
    auto look = smp::step([](Tensor) {}, options);
    EXPECT_THAT(refused_step<UsageError>(0, [&] { look(rows(4)); }),
                HasSubstr("3 weights for 2 microbatches"));
    options.loss = "average";
    auto other = smp::step([](Tensor) {}, options);
    EXPECT_THAT(refused_step<UsageError>(0, [&] { other(rows(4)); }), HasSubstr("\"average\""));
  });
}

// ---- outputs ----------------------------------------------------------------------------------

struct Report {
  Tensor loss;
  std::string text;
};

TEST(StepArguments, OutputsOfEveryKindReachEveryRank) {
  on_ranks(2, [] {
    const auto x = rows(4);
    auto number = smp::step([](Tensor own) { return static_cast<int>(own.size(0)); });
    EXPECT_THAT(number(x).outputs(), ElementsAre(2, 2));
    EXPECT_EQ(number(x).reduce_sum(), 4);
    EXPECT_EQ(number(x).reduce_mean(), 2);
    auto report = smp::step([](Tensor own) { return Report{own.sum(), "seen"}; });
    EXPECT_EQ(report(x).outputs().at(1).text, "seen");
    EXPECT_TRUE(at::equal(report(x).outputs().at(0).loss, x.narrow(0, 0, 2).sum()));
    auto table = smp::step([](Tensor own) {
      return std::map<std::string, double>{{"mean", own.mean().item<double>()}};
    });
    EXPECT_EQ(table(x).outputs().at(1).at("mean"), x.narrow(0, 2, 2).mean().item<double>());
    auto pair = smp::step([](Tensor own) { return std::pair(own, 3); });
    EXPECT_THAT(std::get<1>(pair(x)).outputs(), ElementsAre(3, 3));
  });
}

TEST(StepArguments, OutputsAreStackedConcatenatedAndSummed) {
  on_ranks(2, [] {
    const auto x = rows(4);
    auto same = smp::step([](Tensor own) { return own; });
    const auto output = same(x);
    EXPECT_TRUE(at::equal(output.concat(), x));
    EXPECT_TRUE(at::equal(output.concat(1), at::cat({x.narrow(0, 0, 2), x.narrow(0, 2, 2)}, 1)));
    EXPECT_TRUE(at::equal(output.stack(), x.reshape({2, 2, 3})));
    EXPECT_TRUE(at::equal(output.reduce_sum(), x.narrow(0, 0, 2) + x.narrow(0, 2, 2)));
  });
}

TEST(StepArguments, OutputsCarryNoHistory) {
  on_ranks(2, [] {
    FarModel own;
    auto train = smp::step([&](Tensor x) {
      auto y = own.model(x);
      own.model.backward(y.sum());
      return y;
    });
    EXPECT_FALSE(train(rows(4)).concat().requires_grad());
  });
}

TEST(StepArguments, OutputsStayOnTheFirstRankIfAskedFor) {
  on_ranks(2, [] {
    StepOptions options;
    options.broadcast_outputs = false;
    auto number = smp::step([] { return 1; }, options);
    const auto output = number();
    if (rank() == 0) {
      EXPECT_EQ(output.reduce_sum(), 2);
    } else {
      EXPECT_THAT(refusal<UsageError>([&] { output.reduce_sum(); }),
                  HasSubstr("broadcast_outputs"));
    }
  });
}

TEST(StepArguments, ABodyMayReturnNothing) {
  on_ranks(2, [] {
    int calls = 0;
    auto count = smp::step([&](Tensor) { ++calls; });
    count(rows(4));
    EXPECT_EQ(calls, rank() == 0 ? 2 : 0);
  });
}

}  // namespace
}  // namespace smp
