// Ranks that do not do the same: what differs is named, with the values and the ranks.
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <limits>

#include "api/far_model.h"
#include "api/two_ranks.h"

namespace smp {
namespace rank_agreement_test {

using testing::AllOf;
using testing::HasSubstr;

template <class Model>
auto step_of(Model& own) {
  return smp::step([&own](const at::Tensor& x) {
    const auto loss = own.model(x).pow(2).mean();
    own.model.backward(loss);
    return loss.detach();
  });
}

struct SeededModel {
  SeededModel() : net(make()), model(net) { model.set_partition("far", 1); }
  static Top make() {
    torch::manual_seed(10 + static_cast<std::uint64_t>(rank()));
    return {};
  }
  Top net;
  DistributedModel<Top> model;
};

TEST(RankAgreement, AModelOfAnotherSeedIsNamedByItsFirstParameter) {
  on_ranks(3, [] {
    SeededModel own;
    EXPECT_THAT(refusal<UsageError>([&] { own.model.place(); }),
                AllOf(HasSubstr("parameter 'far.linear.weight' differs between ranks"),
                      HasSubstr("on rank 0 Double[2, 3], first value "),
                      HasSubstr("; on rank 1 Double"), HasSubstr("torch::manual_seed")));
  });
}

TEST(RankAgreement, SoIsOneNumberOfTheLastRank) {
  on_ranks(3, [] {
    FarModel own;
    if (rank() == 2) {
      const at::NoGradGuard no_grad;
      own.far()->linear->bias[1] = 7;
    }
    EXPECT_THAT(refusal<UsageError>([&] { own.model.place(); }),
                AllOf(HasSubstr("parameter 'far.linear.bias' differs"), HasSubstr("on rank 2 ")));
  });
}

/// Values that are conjugated or negated when they are read.
TEST(RankAgreement, LazyConjugatesAndNegativesAreCompared) {
  for (const bool conjugate : {true, false}) {
    on_ranks(2, [&] {
      nn::Sequential net(nn::Linear(4, 4));
      const auto values = at::arange(3, at::kDouble) + rank();
      net->register_parameter(
          "lazy", conjugate ? at::complex(values, values).conj() : at::_neg_view(values));
      DistributedModel model(net);
      EXPECT_THAT(refusal<UsageError>([&] { model.place(); }),
                  HasSubstr("parameter 'lazy' differs between ranks"));
    });
  }
}

TEST(RankAgreement, ModulesThatOneRankLacksAreNamed) {
  on_ranks(2, [] {
    nn::Sequential net(nn::Linear(4, 4));
    if (rank() == 1) net->push_back(nn::Linear(4, 2));
    DistributedModel model(net);
    EXPECT_THAT(refusal<UsageError>([&] { model.place(); }),
                AllOf(HasSubstr("the models of the ranks differ: \"1\": unknown on rank 0, "),
                      HasSubstr("Float[2, 4]"), HasSubstr(" on rank 1; "),
                      HasSubstr("build the same model on every rank")));
  });
}

TEST(RankAgreement, ParametersOfAnotherShapeAreNamed) {
  on_ranks(2, [] {
    nn::Sequential net(nn::Linear(4, 4 + rank()));
    DistributedModel model(net);
    EXPECT_THAT(refusal<UsageError>([&] { model.place(); }),
                AllOf(HasSubstr("\"0\": "), HasSubstr("Float[4, 4]"), HasSubstr("Float[5, 4]"),
                      testing::Not(HasSubstr("the order"))));
  });
}

struct DroppedImpl : torch::nn::Module {
  explicit DroppedImpl(double p) : drop(register_module("drop", nn::Dropout(p))) {}
  at::Tensor forward(const at::Tensor& x) { return drop(x); }
  nn::Dropout drop;
};
SMP_MODULE(Dropped);

TEST(RankAgreement, OptionsThatAPrintedModelShowsAreCompared) {
  on_ranks(2, [] {
    Dropped net(rank() == 0 ? 0.1 : 0.25);
    DistributedModel model(net);
    EXPECT_THAT(refusal<UsageError>([&] { model.place(); }),
                AllOf(HasSubstr("module 'drop': torch::nn::Dropout(p=0.1"),
                      HasSubstr("on rank 0, torch::nn::Dropout(p=0.25"), HasSubstr("on rank 1;")));
  });
}

TEST(RankAgreement, ABufferWithoutMeaningIsNoReasonToStop) {
  on_ranks(2, [] {
    FarModel own;
    own.far()->register_buffer("scratch", torch::full({2}, rank()));
    step_of(own)(rows(4));
  });
}

/// Its sign and payload depend on the instruction that computed it.
TEST(RankAgreement, ANaNIsOneNaN) {
  on_ranks(2, [] {
    FarModel own;
    const at::NoGradGuard no_grad;
    auto bias = own.far()->linear->bias.detach();
    bias.fill_(std::nan(""));
    if (rank() == 1) bias.view(at::kLong).bitwise_or_(std::numeric_limits<std::int64_t>::min() + 9);
    own.model.place();
  });
}

TEST(RankAgreement, LearningRatesThatDifferAreNamed) {
  on_ranks(2, [] {
    FarModel own;
    DistributedOptimizer optimizer(own.model, torch::optim::SGD(own.net->parameters(), 0.5));
    auto train = step_of(own);
    train(rows(4));
    auto& options = static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options());
    if (rank() == 1) options.lr(0.25);
    EXPECT_THAT(refused_step<UsageError>(0, [&] { train(rows(4)); }),
                AllOf(HasSubstr("lr of optimizer 0, group 0: 0.5 on rank 0, 0.25 on rank 1"),
                      HasSubstr("every rank")));
    options.lr(0.25);
    train(rows(4));
  });
}

struct ReplicatedModel {
  ReplicatedModel() : net(FarModel::make()), model(net) {}
  Top net;
  DistributedModel<Top> model;
};

Config replicated() {
  Config config;
  config.pipeline_parallel_degree = 1;
  config.microbatches = 2;
  return config;
}

/// They need not meet where gradients are clipped.
TEST(RankAgreement, ReplicasThatClipInOtherWaysAreNamed) {
  struct Way {
    std::function<void(ReplicatedModel&)> clip;
    const char* named;
  };
  const std::vector<Way> ways{
      {[](auto& own) { clip_grad_norm_(own.model, 1.0 + dp_rank()); },
       "clipped to norm 1 of order 2 on rank 0, clipped to norm 2 of order 2 on rank 1"},
      {[](auto& own) {
         if (dp_rank() == 0) clip_grad_norm_(own.model, 1.0);
       },
       "clipped to norm 1 of order 2 on rank 0, not clipped on rank 1"},
      {[](auto& own) {
         for (int i = 0; i < 100; ++i) clip_grad_norm_(own.model, 1.0 + (i >= 20 + dp_rank()));
       },
       "clipped to norm 1 of order 2, 20 times, to norm 2 of order 2, 80 times on rank 0"},
      {[](auto& own) {
         for (int i = 0; i < 100; ++i) clip_grad_norm_(own.model, 1.0 + i % (50 + dp_rank()));
       },
       "and further calls of number "}};
  for (const auto& [clip, named] : ways) {
    run_local(2,
              [&clip = clip, &named = named] {
                ReplicatedModel own;
                auto train = step_of(own);
                train(rows(4));
                clip(own);
                EXPECT_THAT(refusal<Error>([&] { train(rows(4)); }), HasSubstr(named));
                clip_grad_norm_(own.model, 1);
                train(rows(4));
              },
              replicated(), {1});
  }
}

TEST(RankAgreement, SoAreOtherOptimizers) {
  on_ranks(2, [] {
    FarModel own;
    const auto parameters = own.net->parameters();
    std::optional<DistributedOptimizer<torch::optim::SGD>> sgd;
    std::optional<DistributedOptimizer<torch::optim::Adam>> adam;
    if (rank() == 0) sgd.emplace(own.model, torch::optim::SGD(parameters, 0.5));
    if (rank() == 1) adam.emplace(own.model, torch::optim::Adam(parameters, 0.5));
    auto train = step_of(own);
    EXPECT_THAT(refused_step<UsageError>(0, [&] { train(rows(4)); }),
                AllOf(HasSubstr("optimizer 0's options"), HasSubstr("SGD"), HasSubstr("Adam")));
  });
}

TEST(RankAgreement, AnotherStepFunctionIsNamed) {
  on_ranks(2, [] {
    FarModel own;
    auto train = step_of(own);
    auto evaluate = smp::step([&](const at::Tensor& x) { return own.model(x).mean().detach(); });
    EXPECT_THAT(refused_step<UsageError>(0,
                                         [&] {
                                           if (rank() == 0) {
                                             train(rows(4));
                                           } else {
                                             evaluate(rows(4));
                                           }
                                         }),
                AllOf(HasSubstr("the step: "), HasSubstr("on rank 1")));
    train(rows(4));
  });
}

TEST(RankAgreement, ButRanksMayGiveTheArgumentsAsTheyLike) {
  on_ranks(2, [] {
    FarModel own;
    auto train = step_of(own);
    const auto x = rows(4);
    if (rank() == 0) {
      train(x);
    } else {
      train(at::Tensor());
    }
  });
}

TEST(RankAgreement, GradientsThatOneRankForgetsToClearAreNoticed) {
  on_ranks(2, [] {
    FarModel own;
    auto train = step_of(own);
    train(rows(4));
    if (rank() == 0) own.model.zero_grad();
    EXPECT_THAT(
        refused_step<UsageError>(0, [&] { train(rows(4)); }),
        HasSubstr("zero_grad() since the last step: called on rank 0, not called on rank 1"));
  });
}

TEST(RankAgreement, AnOptimizerThatOnlyOneRankUsesIsNoticed) {
  for (const bool steps : {true, false}) {
    on_ranks(2, [&] {
      FarModel own;
      DistributedOptimizer optimizer(own.model, torch::optim::SGD(own.model.parameters(), 0.1));
      auto train = step_of(own);
      train(rows(4));
      if (rank() == 0) steps ? optimizer.step() : optimizer.zero_grad();
      EXPECT_THAT(refused_step<UsageError>(0, [&] { train(rows(4)); }),
                  HasSubstr(steps ? "optimizer.step() since the last step: 1 on rank 0, 0 on rank 1"
                                  : "zero_grad() since the last step: called on rank 0, not"));
    });
  }
}

TEST(RankAgreement, MoreMicrobatchesOnOneRankAreNoticed) {
  on_ranks(2, [] {
    FarModel own;
    StepOptions options;
    options.microbatches = rank() == 0 ? 2 : 4;
    auto train = smp::step([&](const at::Tensor& x) { own.model(x); }, options);
    EXPECT_THAT(refused_step<UsageError>(0, [&] { train(rows(4)); }),
                HasSubstr("the number of microbatches: 2 on rank 0, 4 on rank 1"));
  });
}

}  // namespace rank_agreement_test
}  // namespace smp
