// No silent bypass (docs/design.md, Foreign parameters): code that reaches past the interception,
// or that treats the ranks differently, is refused with a text that says what to do.
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <sstream>
#include <stdexcept>

#include "api/two_ranks.h"

namespace smp {
namespace bypass_test {

using testing::AllOf;
using testing::HasSubstr;

struct ScaleImpl : torch::nn::Module {
  ScaleImpl() : weight(register_parameter("weight", torch::ones({4}))) {}
  at::Tensor forward(const at::Tensor& x) { return x * weight; }
  at::Tensor weight;
};
SMP_MODULE(Scale);

// `near` lives on rank 0 and `far` on rank 1.
struct PairImpl : torch::nn::Module {
  PairImpl() : near(register_module("near", Scale())), far(register_module("far", Scale())) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto y = near(x);
    return read_weight ? y * far->weight : far(y);
  }
  Scale near, far;
  bool read_weight = false;
};
SMP_MODULE(Pair);

// One rank's Pair and a training step over it.
struct Rank {
  Rank() : model(net) {
    model.set_partition("", 0);
    if (size() > 1) model.set_partition("far", 1);
  }
  void step() { train(torch::ones({4, 4})); }

  Pair net;
  DistributedModel<Pair> model;
  Step<std::function<at::Tensor(at::Tensor)>> train =
      smp::step(std::function<at::Tensor(at::Tensor)>([this](at::Tensor x) {
        auto loss = model(x).mean();
        model.backward(loss);
        return loss;
      }));
};

// ---- values of other ranks ---------------------------------------------------------------------

TEST(Bypass, AnotherRanksParameterIsNotReadAndTheTextSaysWhatToDo) {
  on_ranks(2, [] {
    Rank own;
    own.model.place();
    own.net->read_weight = true;
    EXPECT_THAT(refused_step<UsageError>(0, [&] { own.step(); }),
                AllOf(HasSubstr("parameter far.weight"), HasSubstr("lives on rank 1"),
                      HasSubstr("Call the module")));
    own.net->read_weight = false;
    own.step();
  });
}

TEST(Bypass, AnotherRanksParameterIsNotWritten) {
  for (const auto write :
       {+[](at::Tensor& t) { t.zero_(); }, +[](at::Tensor& t) { t.fill_(1); },
        +[](at::Tensor& t) { t.mul_(2); }, +[](at::Tensor& t) { t.copy_(torch::ones({4})); },
        +[](at::Tensor& t) { t.set_data(torch::ones({4})); }}) {
    on_ranks(2, [&] {
      Rank own;
      own.step();
      auto& foreign = rank() == 0 ? own.net->far->weight : own.net->near->weight;
      EXPECT_THAT(refusal([&] {
                    const at::NoGradGuard no_grad;
                    write(foreign);
                  }),
                  AllOf(HasSubstr(rank() == 0 ? "far.weight lives on rank 1"
                                              : "near.weight lives on rank 0"),
                        HasSubstr("model.owns(tensor)")));
      own.step();
    });
  }
}

/// The graph was built when the parameter was still here.
TEST(Bypass, AGradientOfAnotherRanksParameterIsRefused) {
  on_ranks(2, [] {
    Rank own;
    const auto old = own.net->far->weight.exp().sum();
    own.model.place();
    auto wrong = smp::step([&](at::Tensor x) { own.model.backward(own.model(x).mean() + old); });
    EXPECT_THAT(refused_step<UsageError>(0,
                                         [&] {
                                           wrong(torch::ones({4, 4}));
                                         }),
                HasSubstr("far.weight"));
    own.step();
  });
}

TEST(Bypass, APlacedModelIsNotSavedLoadedClonedOrConverted) {
  on_ranks(2, [] {
    std::stringstream before;
    Pair original;
    torch::save(original, before);
    Rank own;
    own.step();
    const auto text = AllOf(HasSubstr("after the model was placed"), HasSubstr("before the first"));
    std::stringstream stream;
    EXPECT_THAT(refusal<UnsupportedError>([&] { torch::save(own.net, stream); }), text);
    EXPECT_THAT(refusal<UnsupportedError>([&] { torch::load(own.net, before); }), text);
    EXPECT_THAT(refusal<UnsupportedError>([&] { own.net->clone(); }), text);
    EXPECT_THAT(refusal<UnsupportedError>([&] { own.net->to(torch::kDouble); }), text);
    if (rank() == 0) {
      EXPECT_THAT(refusal<UnsupportedError>([&] { torch::save(own.net->far, stream); }),
                  HasSubstr("'far'"));
    } else {
      EXPECT_NO_THROW(torch::save(own.net->far, stream)) << "all of it is here";
    }
    own.step();
  });
}

// ---- calls past the model ----------------------------------------------------------------------

TEST(Bypass, LibTorchsBackwardSaysToCallTheModels) {
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [] {
      Rank own;
      auto wrong = smp::step([&](at::Tensor x) { own.model(x).mean().backward(); });
      EXPECT_THAT(refused_step<UsageError>(0,
                                           [&] {
                                             wrong(torch::ones({4, 4}));
                                           }),
                  HasSubstr("Call model.backward(loss) instead of loss.backward()"));
      own.step();
    });
  }
}

TEST(Bypass, LibTorchsGradSaysSoToo) {
  on_ranks(2, [] {
    Rank own;
    auto wrong = smp::step([&](at::Tensor x) {
      torch::autograd::grad({own.model(x).mean()}, {own.net->near->weight});
    });
    EXPECT_THAT(refused_step<UsageError>(0,
                                         [&] {
                                           wrong(torch::ones({4, 4}));
                                         }),
                HasSubstr("torch::autograd::grad()"));
  });
}

TEST(Bypass, LibTorchsGradIsRightWhereAllIsHere) {
  on_ranks(1, [] {
    Rank own;
    auto train = smp::step([&](at::Tensor x) {
      const auto loss = own.model(x).pow(2).mean();
      const std::vector<at::Tensor> weights{own.net->near->weight};
      const auto theirs = torch::autograd::grad({loss}, weights, {}, true);
      EXPECT_TRUE(torch::equal(theirs[0], smp::grad({loss}, weights)[0]));
    });
    train(torch::ones({4, 4}));
  });
}

TEST(Bypass, TheModelIsCalledInsideOfSteps) {
  on_ranks(2, [] {
    Rank own;
    const auto x = torch::ones({4, 4});
    EXPECT_THAT(refusal<UsageError>([&] { own.model(x); }), HasSubstr("outside of a step"));
    own.step();
    EXPECT_THAT(refusal<UsageError>([&] { own.model(x); }), HasSubstr("smp::step"));
  });
}

TEST(Bypass, AModuleOfAnotherRankIsNotCalledOutsideOfSteps) {
  on_ranks(2, [] {
    Rank own;
    own.net(torch::ones({4, 4}));  // not placed yet: a module like any other
    own.step();
    auto& foreign = rank() == 0 ? own.net->far : own.net->near;
    EXPECT_THAT(refusal<UsageError>([&] {
                  foreign(torch::ones({4, 4}));
                }),
                AllOf(HasSubstr(rank() == 0 ? "'far'" : "'near'"), HasSubstr("outside of a step")));
    auto& mine = rank() == 0 ? own.net->near : own.net->far;
    EXPECT_TRUE(mine(torch::ones({4, 4})).defined());
  });
}

TEST(Bypass, BackwardIsCalledInTheBody) {
  on_ranks(2, [] {
    Rank own;
    const auto loss = torch::ones({}, torch::requires_grad());
    EXPECT_THAT(refusal<UsageError>([&] { own.model.backward(loss); }),
                HasSubstr("outside of a step"));
  });
}

TEST(Bypass, BackwardNeedsOneNumberThatDependsOnAParameter) {
  on_ranks(1, [] {
    Rank own;
    auto constant = smp::step([&] { own.model.backward(torch::ones({})); });
    EXPECT_THAT(refusal<UsageError>([&] { constant(); }), HasSubstr("does not require grad"));
    auto wide = smp::step([&](at::Tensor x) { own.model.backward(own.model(x)); });
    EXPECT_THAT(refusal<UsageError>([&] {
                  wide(torch::ones({4, 4}));
                }),
                AllOf(HasSubstr("[2, 4]"), HasSubstr("pass a gradient")));
  });
}

TEST(Bypass, AFailedBackwardEndsTheStepEvenIfTheBodyHandlesIt) {
  on_ranks(2, [] {
    Rank own;
    auto careless = smp::step([&](at::Tensor x) {
      try {
        const auto y = own.model(x);
        y.register_hook([](const at::Tensor&) { throw std::runtime_error("a hook of far"); });
        own.model.backward(y.mean());
      } catch (const std::exception&) {
      }
    });
    EXPECT_THAT(refused_step<std::runtime_error>(0,
                                                 [&] {
                                                   careless(torch::ones({4, 4}));
                                                 }),
                HasSubstr("a hook of far"));
  });
}

// ---- one of everything -------------------------------------------------------------------------

TEST(Bypass, ARankStartsOnce) {
  on_ranks(2, [] {
    int argc = 1;
    char name[] = "program";
    char* argv[] = {name, nullptr};
    EXPECT_THAT(refusal<UsageError>([&] { auto session = init(argc, argv); }),
                HasSubstr("called twice"));
    EXPECT_THAT(refusal<UsageError>([] { run_local(1, [] {}); }), HasSubstr("inside of a session"));
  });
  EXPECT_THAT(refusal<UsageError>([] { rank(); }), HasSubstr("smp::init"));
}

TEST(Bypass, AModuleIsWrappedOnce) {
  on_ranks(1, [] {
    Rank own;
    EXPECT_THAT(refusal<UsageError>([&] { DistributedModel again(own.net); }),
                HasSubstr("wrapped in an smp::DistributedModel already"));
  });
}

TEST(Bypass, StepsAndCollectivesDoNotNest) {
  on_ranks(1, [] {
    Rank own;
    auto nested = smp::step([&] { own.step(); });
    EXPECT_THAT(refusal<UsageError>([&] { nested(); }), HasSubstr("inside a step"));
  });
  on_ranks(2, [] {  // of which the second has no body that could come to the barrier
    Rank own;
    auto waiting = smp::step([] { barrier(); });
    EXPECT_THAT(refusal<UsageError>([&] { waiting(); }), HasSubstr("smp::barrier"));
  });
}

TEST(Bypass, AnOptimizerThatNeedsAllParametersIsRefused) {
  on_ranks(2, [] {
    Rank own;
    EXPECT_THAT(refusal<UnsupportedError>([&] {
                  DistributedOptimizer optimizer(own.model,
                                                 torch::optim::LBFGS(own.model.parameters()));
                }),
                HasSubstr("LBFGS"));
  });
}

// ---- ranks that differ -------------------------------------------------------------------------

TEST(Bypass, AnotherNumberOfMicrobatchesOnOneRankIsRefused) {
  on_ranks(
      2,
      [] {
        Rank own;
        StepOptions options;
        options.microbatches = rank() == 0 ? 4 : 2;
        auto train = smp::step([&](at::Tensor x) { own.model(x); }, options);
        EXPECT_THAT(refused_step<UsageError>(1,
                                             [&] {
                                               train(torch::ones({4, 4}));
                                             }),
                    AllOf(HasSubstr("microbatches"), HasSubstr("every rank")));
      },
      4);
}

}  // namespace bypass_test
}  // namespace smp
