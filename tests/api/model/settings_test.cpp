// train(), eval() and requires_grad_() reach every rank: called by the body or on one rank between
// steps, they act as in plain LibTorch, whatever runs at the same time (docs/what_is_equal.md).
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <map>

#include "api/modes/ways.h"
#include "api/two_ranks.h"

namespace smp {
namespace settings_test {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kMicrobatches = 4;

/// Not routed: its switches belong to the module that holds it.
struct GainImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return is_training() ? x * 1.5 : x * 0.25; }
};
TORCH_MODULE(Gain);

/// What it computes shows its modes, and those of what it holds.
struct SwitchModalImpl : torch::nn::Module {
  SwitchModalImpl()
      : linear(register_module("linear", nn::Linear(3, 3))),
        gain(register_module("gain", Gain())) {}
  at::Tensor forward(const at::Tensor& x) {
    if (quiet) gain->eval();
    const auto y = gain(linear(x).tanh());
    return is_training() ? y : y + 0.5;
  }
  at::Tensor hushed(const at::Tensor& x, const at::Tensor& hush) {
    if (hush.item<bool>()) gain->eval();
    return forward(x);
  }
  nn::Linear linear;
  Gain gain;
  bool quiet = false;
};
SMP_MODULE(SwitchModal, hushed);

/// Holds a part that lives elsewhere again.
struct SwitchNestImpl : torch::nn::Module {
  SwitchNestImpl()
      : inner(register_module("inner", SwitchModal())),
        last(register_module("last", SwitchModal())) {}
  at::Tensor forward(const at::Tensor& x) { return last(inner(x)) - 0.1 * x; }
  /// Leaves its parts as they were, but not while it waits.
  at::Tensor there_and_back(const at::Tensor& x) {
    last->eval();
    const auto y = inner(x);
    const auto z = last(y);
    last->train();
    return last(z);
  }
  SwitchModal inner, last;
};
SMP_MODULE(SwitchNest, there_and_back);

struct SwitchPairImpl : torch::nn::Module {
  SwitchPairImpl()
      : near(register_module("near", SwitchModal())),
        far(register_module("far", SwitchModal())),
        nest(register_module("nest", SwitchNest())) {
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return nest(far(near(x))); }
  SwitchModal near, far;
  SwitchNest nest;
};
SMP_MODULE(SwitchPair);

SwitchPair make_pair() {
  torch::manual_seed(3);
  return {};
}

void freeze(torch::nn::Module& module, bool on = true) {
  for (auto& parameter : module.parameters()) parameter.set_requires_grad(!on);
}

at::Tensor batch(int step) {
  return torch::linspace(-1, 1 + step, 8 * 3, torch::kDouble).reshape({8, 3});
}

using Backward = std::function<void(const at::Tensor&)>;
/// One microbatch: what the user writes, for both.
using Body = std::function<at::Tensor(SwitchPair&, const at::Tensor&, const Backward&)>;
/// What the user does before each step.
using Before = std::function<void(SwitchPair&, int step)>;

struct Result {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> tensors;

  void note(int step, const DistributedModelBase::NamedTensors& parameters) {
    for (const auto& [name, parameter] : parameters) {
      const auto at = std::to_string(step) + " " + name;
      tensors[at] = parameter.detach().clone();
      tensors[at + ".grad"] = parameter.grad().defined() ? parameter.grad().clone() : at::Tensor();
    }
  }
};

constexpr int kSteps = 3;

Result plain(const Body& body, const Before& before) {
  Result result;
  auto net = make_pair();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
  for (int step = 0; step < kSteps; ++step) {
    before(net, step);
    optimizer.zero_grad();
    double loss = 0;
    for (const auto& x : batch(step).chunk(kMicrobatches)) {
      loss +=
          body(net, x, [](const at::Tensor& t) { (t / kMicrobatches).backward(); }).item<double>() /
          kMicrobatches;
    }
    result.losses.push_back(loss);
    DistributedModelBase::NamedTensors all;
    for (const auto& item : net->named_parameters()) all.emplace_back(item.key(), item.value());
    optimizer.step();
    result.note(step, all);
  }
  return result;
}

std::vector<Way> ways() {
  std::vector<Way> all;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto* pipeline : {"simple", "interleaved"}) {
      for (const std::uint64_t seed : {1, 2, 3}) all.push_back({ranks, pipeline, seed});
    }
  }
  return all;
}

/// The parts of a SwitchPair, as far apart as there are ranks.
struct Rank {
  Rank() : model(net) {
    model.set_partition("", 0);
    model.set_partition("far", 1 % size());
    model.set_partition("nest", 2 % size());
    model.set_partition("nest.inner", 3 % size());
  }
  SwitchPair net = make_pair();
  DistributedModel<SwitchPair> model;
};

void compare(const Body& body, const Before& before) {
  const auto expected = plain(body, before);
  for (const auto& way : ways()) {
    SCOPED_TRACE(testing::Message() << way.ranks << " ranks, " << way.pipeline << ", " << way.seed);
    std::vector<Result> results(static_cast<std::size_t>(way.ranks));
    run_in(way, kMicrobatches, [&] {
      Rank own;
      auto& result = results[static_cast<std::size_t>(rank())];
      DistributedOptimizer optimizer(
          own.model,
          torch::optim::SGD(own.net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5)));
      auto train = smp::step([&](const at::Tensor& x) {
        return body(own.net, x, [&](const at::Tensor& t) { own.model.backward(t); });
      });
      for (int step = 0; step < kSteps; ++step) {
        before(own.net, step);
        optimizer.zero_grad();
        result.losses.push_back(train(batch(step)).reduce_mean().item<double>());
        optimizer.step();
        result.note(step, own.model.local_named_parameters());
      }
    });
    std::size_t seen = 0;
    for (const auto& result : results) {
      ASSERT_EQ(result.losses.size(), expected.losses.size());
      for (std::size_t i = 0; i < expected.losses.size(); ++i) {
        EXPECT_NEAR(result.losses[i], expected.losses[i], 1e-12) << "step " << i;
      }
      seen += result.tensors.size();
      for (const auto& [name, tensor] : result.tensors) {
        const auto& wanted = expected.tensors.at(name);
        ASSERT_EQ(tensor.defined(), wanted.defined()) << name;
        if (!tensor.defined()) continue;
        EXPECT_TRUE(at::allclose(tensor, wanted, 1e-12, 1e-12)) << name;
      }
    }
    EXPECT_EQ(seen, expected.tensors.size());
    if (testing::Test::HasFailure()) return;
  }
}

void nothing(SwitchPair&, int) {}

at::Tensor simple_body(SwitchPair& net, const at::Tensor& x, const Backward& backward) {
  const auto loss = net(x).pow(2).mean();
  backward(loss);
  return loss.detach();
}

// ---- modes that the body switches --------------------------------------------------------------

TEST(Settings, ABodySwitchesModesBetweenTwoCallsOfTheSameModule) {
  compare(
      [](SwitchPair& net, const at::Tensor& x, const Backward& backward) {
        net->far->eval();
        const auto quiet = net->far(net->near(x));
        net->far->train();
        const auto loud = net->far(net->near(x));
        net->nest->inner->eval();
        const auto both = net->nest(quiet + loud);
        net->nest->inner->train();
        const auto loss = both.pow(2).mean() + net->nest(loud).mean();
        backward(loss);
        return loss.detach();
      },
      nothing);
}

TEST(Settings, ThePlainModuleInsideOfARoutedOneIsSwitchedByItself) {
  compare(
      [](SwitchPair& net, const at::Tensor& x, const Backward& backward) {
        net->far->gain->eval();
        net->nest->inner->gain->eval();
        const auto loss = net(x).pow(2).mean();
        net->far->gain->train();
        net->nest->inner->gain->train();
        backward(loss);
        return loss.detach();
      },
      nothing);
}

/// As adversarial training does it: the judge learns from what is made, but not while it judges.
TEST(Settings, ABodyFreezesAModuleForOneOfItsLosses) {
  compare(
      [](SwitchPair& net, const at::Tensor& x, const Backward& backward) {
        const auto made = net->far(net->near(x));
        freeze(*net->nest);
        const auto generator = net->nest(made).mean();
        freeze(*net->nest, false);
        const auto judge = net->nest(made.detach()).pow(2).mean();
        backward(generator);
        backward(judge);
        return (generator + judge).detach();
      },
      nothing);
}

TEST(Settings, ABodyFreezesSomeParameters) {
  compare(
      [](SwitchPair& net, const at::Tensor& x, const Backward& backward) {
        net->far->linear->bias.set_requires_grad(false);
        net->nest->inner->linear->weight.set_requires_grad(false);
        net->near->linear->bias.set_requires_grad(false);
        return simple_body(net, x, backward);
      },
      nothing);
}

TEST(Settings, WhatIsFrozenBetweenForwardAndBackwardGetsNoGradient) {
  compare(
      [](SwitchPair& net, const at::Tensor& x, const Backward& backward) {
        const auto loss = net(x).pow(2).mean();
        freeze(*net->far);
        net->near->linear->bias.set_requires_grad(false);
        net->nest->inner->linear->weight.set_requires_grad(false);
        backward(loss);
        freeze(*net, false);
        return loss.detach();
      },
      nothing);
}

TEST(Settings, ABodyMaySetTheModesItNeedsAtItsBegin) {
  compare(
      [](SwitchPair& net, const at::Tensor& x, const Backward& backward) {
        net->train();
        net->nest->eval();
        return simple_body(net, x, backward);
      },
      [](SwitchPair& net, int step) { net->train(step % 2 == 0); });
}

TEST(Settings, AModuleMaySwitchItsOwnParts) {
  compare(simple_body,
          [](SwitchPair& net, int) { net->far->quiet = net->nest->inner->quiet = true; });
}

/// Whatever runs meanwhile; and what its caller switches after it is no affair of its answer.
TEST(Settings, AModuleMaySwitchAPartAndBack) {
  compare(
      [](SwitchPair& net, const at::Tensor& x, const Backward& backward) {
        const auto y = net->nest->there_and_back(net->far(x));
        net->nest->eval();
        const auto loss = net->nest(y).pow(2).mean();
        net->nest->train();
        backward(loss);
        return loss.detach();
      },
      nothing);
}

/// In a step whose calls return before they end: that it switched is known later.
TEST(Settings, SoItMayNowAndThen) {
  static bool hush;  // of all ranks, which set it alike
  compare(
      [](SwitchPair& net, const at::Tensor& x, const Backward& backward) {
        const auto loss = net->nest(net->far->hushed(x, torch::tensor(hush))).pow(2).mean();
        backward(loss);
        return loss.detach();
      },
      [](SwitchPair&, int step) { hush = step == kSteps - 1; });
}

TEST(Settings, AModeThatTheBodyLeavesIsWhatTheNextMicrobatchFinds) {
  const Body leaves = [](SwitchPair& net, const at::Tensor& x, const Backward& backward) {
    const auto loss = simple_body(net, x, backward);
    net->nest->train(!net->nest->is_training());
    net->far->linear->bias.set_requires_grad(!net->far->linear->bias.requires_grad());
    return loss;
  };
  compare(leaves, nothing);
}

// ---- between steps -----------------------------------------------------------------------------

TEST(Settings, TheFirstRankAloneSwitchesBetweenSteps) {
  compare(simple_body, [](SwitchPair& net, int step) {
    if (is_initialized() && rank() != 0) return;
    net->train(step != 1);
    net->far->eval();
    freeze(*net->nest->inner, step == 2);
    net->near->linear->weight.set_requires_grad(step != 0);
  });
}

TEST(Settings, SoDoAllRanks) {
  compare(simple_body, [](SwitchPair& net, int step) {
    net->train(step != 1);
    net->far->eval();
    freeze(*net->nest, step == 2);
  });
}

TEST(Settings, WhatABodyLeavesStaysForTheNextStep) {
  for (const auto& way : ways()) {
    run_in(way, kMicrobatches, [&] {
      Rank own;
      auto train = smp::step([&](const at::Tensor& x) {
        own.net->eval();
        freeze(*own.net->far);
        return simple_body(own.net, x, [&](const at::Tensor& t) { own.model.backward(t); });
      });
      train(batch(0));
      if (rank() != 0) return;
      EXPECT_FALSE(own.net->nest->is_training());
      EXPECT_FALSE(own.net->far->linear->weight.requires_grad());
    });
  }
}

TEST(Settings, TheTrialRunLeavesNone) {
  run_in({}, kMicrobatches, [] {
    Rank own;
    std::vector<bool> found;
    auto train = smp::step([&](const at::Tensor& x) {
      if (!is_tracing()) found.push_back(own.net->far->is_training());
      own.net->far->eval();
      own.net(x);
    });
    train(batch(0));
    if (rank() == 0) {
      EXPECT_TRUE(found.front());
    }
  });
}

// ---- what cannot be equal ----------------------------------------------------------------------

TEST(Settings, ModesThatDependOnTheMicrobatchAreNamed) {
  run_in({}, kMicrobatches, [] {
    Rank own;
    auto train = smp::step([&](const at::Tensor& x) {
      if (current_microbatch() == 1) own.net->far->linear->bias.set_requires_grad(false);
      own.net(x);
    });
    EXPECT_THAT(refused_step<UsageError>(0, [&] { train(batch(0)); }),
                AllOf(HasSubstr("parameter 'far.linear.bias' frozen"), HasSubstr("microbatch 0"),
                      HasSubstr("microbatch 1")));
  });
}

}  // namespace settings_test
}  // namespace smp
