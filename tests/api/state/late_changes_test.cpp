// What a trial run cannot show, because it begins later or depends on data: found when it happens.
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/sgd.h>

#include <stdexcept>

#include "api/state/module_state_testing.h"

namespace smp {
namespace late_changes_test {

using namespace module_state_test;  // NOLINT(google-build-using-namespace)
using module_state_test::Program;   // there is another where tests are compiled together
using testing::AllOf;
using testing::HasSubstr;

// ---- normalisation in both modes ---------------------------------------------------------------

/// Trains on what it thinks of its input in evaluation mode.
struct TeacherImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return last(norm(first(x))); }
  nn::Linear first = register_module("first", linear());
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(kWidth));
  nn::Linear last = register_module("last", linear());
};
SMP_MODULE(Teacher);

Tensor loss_with_own_labels(Teacher& net, const Program<Teacher>::Forward& forward,
                            const Tensor& x) {
  net->eval();
  const auto labels = forward(x).detach();
  net->train();
  return (forward(x + 1) - labels).pow(2).mean();
}

TEST(LateChanges, ANormalisationInBothModesIsThatOfOneProcess) {
  Program<Teacher> program;
  program.loss = loss_with_own_labels;
  expect_as_in_one_process(program);
}

/// The layer is not routed: its statistics are committed with the calls of the module around it,
/// but the body calls it too.
struct AroundPlainNormImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return last(norm(first(x))); }
  nn::Linear first = register_module("first", linear());
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(kWidth));
  nn::Linear last = register_module("last", linear());
};
SMP_MODULE(AroundPlainNorm);

TEST(LateChanges, ANormalisationThatTheBodyCallsTooIsThatOfOneProcess) {
  Program<AroundPlainNorm> program;
  program.loss = [](AroundPlainNorm& net, const auto& forward, const Tensor& x) {
    return forward(x).pow(2).mean() + net->norm(x).tanh().mean();
  };
  expect_as_in_one_process(program);
}

TEST(LateChanges, OrIsNamedWhereNoTrialShowedIt) {
  auto config = config_of("interleaved");
  config.skip_tracing = true;
  run_local(
      1,
      [] {
        AroundPlainNorm net;
        net->to(torch::kDouble);
        DistributedModel model(net);
        bool too = false;
        auto train = smp::step([&](const Tensor& x) {
          const auto y = model(x).mean();
          model.backward(too ? y + net->norm(x).mean() : y);
        });
        train(batch(0));
        too = true;
        EXPECT_THAT(refused_step<UnsupportedError>(0, [&] { train(batch(1)); }),
                    AllOf(HasSubstr("statistics were updated during the step by other code"),
                          HasSubstr("the next step runs one microbatch at a time")));
        train(batch(1));
      },
      config);
}

/// A body that calls no routed module and leaves a layer in evaluation mode: only microbatch 0 of a
/// step trains it.
struct PlainNormImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return norm(x); }
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(kWidth));
};
TORCH_MODULE(PlainNorm);

TEST(LateChanges, AModeThatABodyWithoutCallsLeavesIsThatOfOneProcess) {
  const auto make = [] {
    PlainNorm net;
    net->to(torch::kDouble);
    return net;
  };
  auto reference = make();
  for (int s = 0; s < kSteps; ++s) {
    reference->train();
    for (const auto& x : batch(s).tensor_split(kMicrobatches)) {
      reference(x);
      reference->norm->eval();
    }
  }
  auto config = config_of("interleaved");
  config.skip_tracing = true;
  run_local(
      1,
      [&] {
        auto net = make();
        DistributedModel model(net);
        auto run = smp::step([&](const Tensor& x) {
          const auto y = model(x);
          net->norm->eval();
          return y.detach();
        });
        for (int s = 0; s < kSteps; ++s) {
          model.train();
          run(batch(s));
        }
        EXPECT_TRUE(
            torch::equal(net->norm->num_batches_tracked, reference->norm->num_batches_tracked));
        EXPECT_TRUE(
            torch::allclose(net->norm->running_mean, reference->norm->running_mean, 1e-12, 1e-12));
      },
      config);
}

/// Throws when its layer has seen the batch already.
struct ThrowsAfterNormImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const auto y = norm(x);
    if (y.defined()) throw std::runtime_error("after the layer");
    return y;
  }
  torch::nn::BatchNorm1d norm = register_module(
      "norm", torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(kWidth).affine(false)));
};
SMP_MODULE(ThrowsAfterNorm);

struct CatchesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    try {
      return part(x);
    } catch (const std::runtime_error&) {
      return last(x);
    }
  }
  ThrowsAfterNorm part = register_module("part", ThrowsAfterNorm());
  nn::Linear last = register_module("last", linear());
};
SMP_MODULE(Catches);

TEST(LateChanges, StatisticsOfACallThatThrowsCountIfSomebodyCatches) {
  expect_as_in_one_process<Catches>({}, {{"", 0}, {"part", 0}, {"last", 1}}, 2);
  expect_as_in_one_process<Catches>({}, {{"", 0}, {"part", 1}, {"last", 1}}, 2);
}

/// Its rank alone cannot have microbatches run one after the other: refused each time, not only
/// once.
TEST(LateChanges, ANormalisationInBothModesElsewhereIsRefusedAgainAndAgain) {
  auto config = config_of("interleaved");
  config.skip_tracing = true;
  run_local(
      2,
      [] {
        Program<Teacher> program;
        auto net = program.make();
        DistributedModel model(net);
        model.set_partition("", 0);
        model.set_partition("norm", 1);
        auto train = smp::step([&](const Tensor& x) {
          model.backward(loss_with_own_labels(
              net, [&](const Tensor& in) { return model(in); }, x));
        });
        for (int step = 0; step < 3; ++step) {
          EXPECT_THAT(refused_step<UnsupportedError>(1, [&] { train(batch(step)); }),
                      AllOf(HasSubstr("rank 1, module 'norm'"), HasSubstr("evaluation mode"),
                            HasSubstr("Place it on stage 0")))
              << step;
        }
      },
      config);
}

// ---- members of modules elsewhere --------------------------------------------------------------

struct ScaledImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return inner(x) * scale; }
  nn::Linear inner = register_module("inner", linear());
  double scale = 1;
};
SMP_MODULE(Scaled);

struct NetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return scaled(first(x)); }
  nn::Linear first = register_module("first", linear());
  Scaled scaled = register_module("scaled", Scaled());
};
SMP_MODULE(Net);

TEST(LateChanges, AMemberThatTheBodySetsOfAModuleElsewhereIsNamed) {
  on_ranks(2, [] {
    Net net;
    net->to(torch::kDouble);
    DistributedModel model(net);
    model.set_partition("", 0);
    model.set_partition("scaled", 1);
    double scale = 1;
    auto evaluate = smp::step([&](const Tensor& x) {
      net->scaled->scale = scale;
      return model(x).detach();
    });
    evaluate(batch(0));
    for (const double value : {0.5, 0.25}) {  // between steps every rank may
      net->scaled->scale = scale = value;
      evaluate(batch(0));
    }
    scale = 0.125;
    EXPECT_THAT(refused_step<UsageError>(0, [&] { evaluate(batch(0)); }),
                AllOf(HasSubstr("changed members of module 'scaled'"), HasSubstr("on rank 1")));
  });
}

// ---- buffers -----------------------------------------------------------------------------------

struct AveragingImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    if (on) average.mul_(0.9).add_(x.detach().mean(0), 0.1);
    return smp::wait(inner(x - average));  // meanwhile the next microbatch comes
  }
  nn::Linear inner = register_module("inner", linear());
  Tensor average = register_buffer("average", torch::zeros({kWidth}, torch::kDouble));
  bool on = false;
};
SMP_MODULE(Averaging);

struct HoldsAverageImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return part(x); }
  Averaging part = register_module("part", Averaging());
};
SMP_MODULE(HoldsAverage);

/// The write comes before a call that leaves, and other microbatches enter meanwhile.
TEST(LateChanges, ABufferThatMicrobatchesWriteInTurnsIsNamed) {
  on_ranks(
      2,
      [] {
        HoldsAverage net;
        net->to(torch::kDouble);
        DistributedModel model(net);
        model.set_partition("", 0);
        model.set_partition("part", 0);
        model.set_partition("part.inner", 1);
        auto evaluate = smp::step([&](const Tensor& x) { return model(x).detach(); });
        evaluate(batch(0));
        net->part->on = true;
        EXPECT_THAT(refused_step<UnsupportedError>(0, [&] { evaluate(batch(0)); }),
                    AllOf(HasSubstr("module 'part'"), HasSubstr("average"),
                          HasSubstr("another microbatch was in it as well")));
        evaluate(batch(0));  // now in order
      },
      kMicrobatches);
}

// ---- what belongs before the step --------------------------------------------------------------

TEST(LateChanges, GradientsAreNotClearedInABody) {
  on_ranks(2, [] {
    Net net;
    net->to(torch::kDouble);
    DistributedModel model(net);
    model.set_partition("scaled", 1);
    auto train = smp::step([&](const Tensor& x) {
      model.zero_grad();
      model.backward(model(x).mean());
    });
    EXPECT_THAT(refused_step<UsageError>(0, [&] { train(batch(0)); }),
                HasSubstr("model.zero_grad() was called inside a step"));
  });
}

TEST(LateChanges, NorByAModuleInABody) {
  on_ranks(2, [] {
    Net net;
    net->to(torch::kDouble);
    DistributedModel model(net);
    model.set_partition("scaled", 1);
    auto train = smp::step([&](const Tensor& x) {
      net->zero_grad();
      model.backward(model(x).mean());
    });
    EXPECT_THAT(refused_step<UsageError>(0, [&] { train(batch(0)); }),
                HasSubstr("was called inside a step"));
  });
}

TEST(LateChanges, AnOptimizerThatStepsInABodyIsNamed) {
  on_ranks(2, [] {
    Net net;
    net->to(torch::kDouble);
    DistributedModel model(net);
    model.set_partition("scaled", 1);
    torch::optim::SGD optimizer(model.local_parameters(), 0.1);
    auto train = smp::step([&](const Tensor& x) {
      model.backward(model(x).mean());
      optimizer.step();
    });
    EXPECT_THAT(refused_step<UsageError>(0, [&] { train(batch(0)); }),
                AllOf(HasSubstr("rank 0: parameter 'first.weight' was written"),
                      HasSubstr("belongs after the step")));
  });
}

TEST(LateChanges, AParameterRegisteredAfterPlacementIsNamed) {
  on_ranks(2, [] {
    Net net;
    net->to(torch::kDouble);
    DistributedModel model(net);
    model.set_partition("scaled", 1);
    auto evaluate = smp::step([&](const Tensor& x) { return model(x).detach(); });
    evaluate(batch(0));
    net->first->register_parameter("late", torch::ones({2}));
    EXPECT_THAT(refusal<UsageError>([&] { evaluate(batch(0)); }),
                AllOf(HasSubstr("'first.late' was registered after"), HasSubstr("constructors")));
  });
}

/// A rank that owns nothing has an empty list, and the others wait for it.
TEST(LateChanges, AnEmptyShareIsClippedToo) {
  on_ranks(2, [] {
    Net net;
    net->to(torch::kDouble);
    DistributedModel model(net);
    for (const char* path : {"", "first", "scaled", "scaled.inner"}) model.set_partition(path, 0);
    auto train = smp::step([&](const Tensor& x) { model.backward(model(x).pow(2).mean()); });
    train(batch(0));
    auto share = model.local_parameters();
    EXPECT_EQ(share.empty(), rank() == 1);
    EXPECT_GT(torch::nn::utils::clip_grad_norm_(share, 1.0), 0);
  });
}

}  // namespace late_changes_test
}  // namespace smp
