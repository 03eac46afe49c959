// Gradients that leave a step: those of its arguments, the grad mode of the caller, and the weights
// of the losses (paper §4.3).
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include "api/far_model.h"
#include "api/rank/rank.h"
#include "api/two_ranks.h"

namespace smp {
namespace step_gradients_test {

using at::Tensor;
using testing::Each;
using testing::HasSubstr;

TEST(StepGradients, AChangeInPlaceStaysInItsMicrobatch) {
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

// ---- of several outputs ------------------------------------------------------------------------

/// One that nobody uses stands between two that are used in different ways.
struct SeveralImpl : torch::nn::Module {
  std::vector<Tensor> forward(const Tensor& x) {
    return {x * weight, x.exp(), x + weight.square()};
  }
  Tensor weight = register_parameter("weight", torch::full({3}, 0.5, torch::kDouble));
};
SMP_MODULE(Several);

struct SeveralFarImpl : torch::nn::Module {
  std::vector<Tensor> forward(const Tensor& x) { return far(x); }
  Several far = register_module("far", Several());
};
SMP_MODULE(SeveralFar);

Tensor loss_of(const std::vector<Tensor>& outputs) {
  return (2 * outputs[0]).sum() + outputs[2].pow(3).sum();
}

TEST(StepGradients, EveryOutputOfARemoteModuleHasItsOwn) {
  Several plain;
  auto x = rows(4).requires_grad_();
  loss_of(plain(x)).backward();
  on_ranks(
      2,
      [&] {
        SeveralFar net;
        DistributedModel model(net);
        model.set_partition("far", 1);
        const auto own = rows(4).requires_grad_();
        auto train = smp::step([&](const Tensor& in) { model.backward(loss_of(net(in))); });
        train(own);
        const auto& expected = rank() == 0 ? x.grad() : plain->weight.grad();
        const auto& found = rank() == 0 ? own.grad() : net->far->weight.grad();
        EXPECT_TRUE(at::allclose(found, expected, 1e-12, 1e-12)) << rank();
      },
      1);
}

// ---- of arguments ------------------------------------------------------------------------------

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

TEST(StepGradients, OfArgumentsEqualThoseOfOneProcess) {
  expect_outside_gradients(1, [](auto& model, Tensor x, Tensor whole) {
    model.backward(outside_loss(model(x * whole)));
  });
}

TEST(StepGradients, OfArgumentsAddUpOverBackwardPasses) {
  expect_outside_gradients(2, [](auto& model, Tensor x, Tensor whole) {
    model.backward(outside_loss(model(x * whole)));
    model.backward(outside_loss(model(x * whole)));
  });
}

TEST(StepGradients, AChangeInPlaceDoesNotReachTheGraphOutside) {
  expect_outside_gradients(1, [](auto& model, Tensor x, Tensor whole) {
    const auto copy = x * 1.0;
    x.mul_(0);
    model.backward(outside_loss(model(copy * whole)));
  });
}

TEST(StepGradients, WithoutGradModeNothingLeavesTheStep) {
  on_ranks(2, [] {
    FarModel own;
    Outside outside;
    const at::NoGradGuard no_grad;
    auto predict = smp::step([&](Tensor x) { return own.model(x); });
    EXPECT_FALSE(predict(outside.x).concat().requires_grad());
    EXPECT_FALSE(outside.leaf.grad().defined());
    const auto& server = Rank::current().server().core();
    EXPECT_EQ(server.step, nullptr);
    EXPECT_EQ(server.counters.backward_requests, 0u);
    EXPECT_EQ(server.counters.executed_forward, rank() == 1 ? 2u : 0u);
    EXPECT_FALSE(at::GradMode::is_enabled());
  });
}

TEST(StepGradients, GradModeIsThatOfTheCallerAtEachStep) {
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

// ---- weights of the losses ---------------------------------------------------------------------

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

TEST(StepGradients, LossesAreWeightedAsAskedFor) {
  StepOptions options;
  EXPECT_TRUE(at::allclose(bias_gradient(options), plain_bias_gradient(3.0 / 5, 2.0 / 5)));
  options.loss = "sum";
  EXPECT_TRUE(at::allclose(bias_gradient(options), plain_bias_gradient(1, 1)));
  options.loss = "weights";
  options.weights = {0.25, 4};
  EXPECT_TRUE(at::allclose(bias_gradient(options), plain_bias_gradient(0.25, 4)));
}

TEST(StepGradients, WeightsThatDoNotFitAreRefused) {
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

}  // namespace step_gradients_test
}  // namespace smp
