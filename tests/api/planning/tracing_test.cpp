// The trial run before the first step: who sees it, what it leaves behind (nothing), and what
// becomes of its plan.
#include <torch/nn/functional/loss.h>

#include <filesystem>
#include <optional>

#include "api/two_ranks.h"
#include "base/files.h"
#include "base/log.h"
#include "support/shared_counter.h"

namespace smp {
namespace tracing_test {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", nn::Linear(4, 8))),
        norm(register_module("norm", nn::BatchNorm1d(8))),
        dropout(register_module("dropout", nn::Dropout(0.5))),
        last(register_module("last", nn::Linear(8, 1))) {}
  Tensor forward(const Tensor& x) { return last(dropout(norm(first(x)).relu())); }
  nn::Linear first;
  nn::BatchNorm1d norm;
  nn::Dropout dropout;
  nn::Linear last;
};
SMP_MODULE(Net);

Net make_net() {
  torch::manual_seed(1);
  return {};
}

/// How often the bodies of a run were called.
struct Bodies {
  SharedCounter traced;
  SharedCounter real;
  void count() { ++(is_tracing() ? traced : real); }
};

struct Traced {
  Bodies bodies;
  std::vector<double> losses;
  std::vector<Tensor> parameters;
  std::string log;
};

Config two_microbatches() {
  Config config;
  config.microbatches = 2;
  config.plan_cache = "off";
  return config;
}

/// Trains for two steps. The body changes its input in place and draws a random number.
Traced train(const Config& config, int ranks = 2, int rows = 6) {
  Traced outcome;
  const base::LogCapture log;
  run_local(
      ranks,
      [&] {
        DistributedModel model(make_net());
        auto train = smp::step([&](Tensor x) {
          outcome.bodies.count();
          auto loss = model(x.mul_(2)).pow(2).mean() + torch::rand({});
          model.backward(loss);
          return loss;
        });
        auto x = torch::ones({rows, 4});
        for (int i = 0; i < 2; ++i) {
          const auto loss = train(x).reduce_mean().item<double>();
          if (rank() == 0) outcome.losses.push_back(loss);
        }
        for (auto& [name, tensor] : model.local_named_parameters()) {
          outcome.parameters.push_back(tensor.grad().clone());
        }
        for (auto& [name, tensor] : model.local_named_buffers()) {
          outcome.parameters.push_back(tensor.clone());
        }
      },
      config);
  outcome.log = log.text();
  return outcome;
}

/// Once for costs, once more for what modules keep.
constexpr int kTrial = 2;

TEST(Tracing, RunsTheFirstBodyInAdvanceOnTheFirstRank) {
  const auto outcome = train(two_microbatches());
  EXPECT_EQ(outcome.bodies.traced, kTrial);
  EXPECT_EQ(outcome.bodies.real, 4);
  EXPECT_THAT(outcome.log, testing::Not(testing::HasSubstr("smp W")));
}

TEST(Tracing, ChangesNoResult) {
  auto config = two_microbatches();
  auto pinned = [&](bool skip) {
    config.skip_tracing = skip;
    return train(config, 1);
  };
  const auto without = pinned(true);
  const auto with = train(two_microbatches());
  EXPECT_EQ(without.bodies.traced, 0);
  EXPECT_EQ(with.bodies.traced, kTrial);
  EXPECT_EQ(with.losses, without.losses);
  ASSERT_EQ(with.parameters.size(), without.parameters.size());
}

TEST(Tracing, ShowsWhatModulesKeepWhereNothingElseIsToBeDecided) {
  auto skip = two_microbatches();
  skip.skip_tracing = true;
  EXPECT_EQ(train(skip).bodies.traced, 0);
  auto by_hand = two_microbatches();
  by_hand.auto_partition = false;
  by_hand.default_partition = 1;
  EXPECT_EQ(train(by_hand).bodies.traced, kTrial);
  EXPECT_EQ(train(two_microbatches(), 1).bodies.traced, kTrial);
}

TEST(Tracing, IsForAModelPlacedByHandToo) {
  Bodies bodies;
  on_ranks(2, [&] {
    DistributedModel model(make_net());
    model.set_partition("", 0);
    model.set_partition("last", 1);
    auto step = smp::step([&](Tensor x) {
      bodies.count();
      return model(x);
    });
    step(torch::ones({4, 4}));
  });
  EXPECT_EQ(bodies.traced, kTrial);
}

TEST(Tracing, RepeatsForTheClock) {
  auto config = two_microbatches();
  config.trace_repeats = 3;
  EXPECT_EQ(train(config).bodies.traced, kTrial + 3);
}

TEST(Tracing, LooksAtAsManyMicrobatchesAsAsked) {
  auto config = two_microbatches();
  config.trace_microbatches = 2;
  EXPECT_EQ(train(config).bodies.traced, 2 * kTrial);
  config.trace_microbatches = 5;
  EXPECT_EQ(train(config).bodies.traced, 2 * kTrial) << "there are two";
}

struct ForkImpl : torch::nn::Module {
  ForkImpl()
      : plus(register_module("plus", nn::Linear(4, 4))),
        minus(register_module("minus", nn::Linear(4, 4))) {}
  Tensor forward(const Tensor& x) { return x.sum().item<double>() > 0 ? plus(x) : minus(x); }
  nn::Linear plus, minus;
};
SMP_MODULE(Fork);

/// By module, in shares: of the model, its first branch and its second.
std::vector<double> costs_of_branches(int traced) {
  auto config = two_microbatches();
  config.trace_microbatches = traced;
  config.memory_weight = 0;
  std::vector<double> costs;
  run_local(
      2,
      [&] {
        DistributedModel model{Fork()};
        auto step = smp::step([&](Tensor x) {
          auto y = model(x);
          model.backward(y.sum());
          return y;
        });
        step(torch::tensor({{1.f, 1.f, 1.f, 1.f}, {-1.f, -1.f, -1.f, -1.f}}));
        if (rank() != 0) return;
        for (const auto& row : model.plan().rows()) costs.push_back(row.cost);
      },
      config);
  return costs;
}

TEST(Tracing, PlansForTheBranchesOfSeveralMicrobatches) {
  const auto one = costs_of_branches(1), two = costs_of_branches(2);
  ASSERT_EQ(one.size(), 3u);
  EXPECT_EQ(one[2], 0) << "never called in the first";
  EXPECT_GT(two[2], .2);
  EXPECT_NEAR(two[1], two[2], 1e-9);
}

/// In seconds of a step, by simulation.
double planned_step_on(const std::string& devices) {
  auto config = two_microbatches();
  config.devices = devices;
  double seconds = 0;
  run_local(
      2,
      [&] {
        DistributedModel model(make_net());
        auto step = smp::step([&](Tensor x) {
          auto loss = model(x).pow(2).mean();
          model.backward(loss);
          return loss;
        });
        step(torch::ones({6, 4}));
        if (rank() == 0) seconds = model.plan().summary()->chosen.step_seconds;
      },
      config);
  return seconds;
}

/// Its operators are tiny, so a device that takes 6 us to issue one is slower than a core.
TEST(Tracing, PricesModulesOnTheDevicesThatWereAskedFor) {
  const double on_cores = planned_step_on(""), on_gpus = planned_step_on("h100");
  EXPECT_EQ(planned_step_on("cpu"), on_cores);
  EXPECT_GT(on_gpus, 1.2 * on_cores);
  EXPECT_GT(planned_step_on("cpu, h100"), 1.02 * on_cores);
  EXPECT_LT(planned_step_on("h100, cpu"), 0.98 * on_gpus);
}

TEST(Tracing, SeesGradientsAlsoIfTheFirstStepIsAnEvaluation) {
  SharedCounter grad_while_tracing;
  on_ranks(2, [&] {
    DistributedModel model(make_net());
    auto evaluate = smp::step([&](Tensor x) {
      auto y = model(x);
      if (is_tracing() && y.requires_grad()) ++grad_while_tracing;
      EXPECT_EQ(y.requires_grad(), is_tracing());
      return y;
    });
    const torch::NoGradGuard no_grad;
    model.eval();
    evaluate(torch::ones({4, 4}));
  });
  EXPECT_EQ(grad_while_tracing, 2 * kTrial);  // once more in training mode
}

TEST(Tracing, IsNotNeededAfterPlace) {
  Bodies bodies;
  on_ranks(2, [&] {
    DistributedModel model(make_net());
    model.place();
    auto step = smp::step([&](Tensor x) {
      bodies.count();
      return model(x);
    });
    step(torch::ones({4, 4}));
  });
  EXPECT_EQ(bodies.traced, 0);
  EXPECT_EQ(bodies.real, 2);
}

TEST(Tracing, SeesAllModelsOfTheSessionInOneRun) {
  Bodies bodies;
  on_ranks(2, [&] {
    DistributedModel one(make_net());
    DistributedModel two(make_net());
    auto step = smp::step([&](Tensor x) {
      bodies.count();
      auto loss = (one(x) + two(x)).mean();
      one.backward(loss);
      return loss;
    });
    step(torch::ones({4, 4}));
    EXPECT_TRUE(one.partitioned() && two.partitioned());
  });
  EXPECT_EQ(bodies.traced, kTrial);
}

TEST(Tracing, LetsAGraphFromOutsideAlone) {
  on_ranks(2, [&] {
    DistributedModel model(make_net());
    auto step = smp::step([&](Tensor x) {
      auto loss = model(x).sum();
      model.backward(loss);
      return loss;
    });
    auto x = torch::ones({4, 4}, torch::requires_grad());
    step(x * 3);
    if (rank() == 0) {
      EXPECT_TRUE(x.grad().defined());
    }
  });
}

// ---- what goes wrong ---------------------------------------------------------------------------

TEST(Tracing, IsGivenUpWithAWarningIfOnlyTheTrialFails) {
  Bodies bodies;
  const base::LogCapture log;
  on_ranks(2, [&] {
    DistributedModel model(make_net());
    auto step = smp::step([&](Tensor x) {
      bodies.count();
      TORCH_CHECK(!is_tracing(), "not in a trial");
      return model(x);
    });
    step(torch::ones({4, 4}));
  });
  EXPECT_EQ(bodies.real, 2);
  EXPECT_THAT(log.text(), AllOf(HasSubstr("not in a trial"), HasSubstr("the step's body"),
                                HasSubstr("modules are counted instead")));
}

TEST(Tracing, LeavesTheErrorOfABodyToTheStep) {
  const base::LogCapture log;
  on_ranks(2, [&] {
    DistributedModel model(make_net());
    model.set_partition("first", 0);
    auto step = smp::step([&](Tensor x) { return model(x); });
    const auto text = rank() == 0 ? refusal<c10::Error>([&] {
      step(torch::ones({4, 3}));
    })
                                  : refusal<RemoteError>([&] {
                                      step(torch::ones({4, 3}));
                                    });
    EXPECT_THAT(text, HasSubstr("cannot be multiplied"));
    step(torch::ones({4, 4}));
  });
  EXPECT_THAT(log.text(), HasSubstr("module 'first' threw"));
}

TEST(Tracing, RefusesWhatAStepRefuses) {
  const base::LogCapture log;
  on_ranks(2, [&] {
    DistributedModel model(make_net());
    auto step = smp::step([&](Tensor x) {
      if (is_tracing()) barrier();
      EXPECT_GE(current_microbatch(), 0);
      return model(x);
    });
    step(torch::ones({4, 4}));
  });
  EXPECT_THAT(log.text(), HasSubstr("smp::barrier was called inside a step"));
}

TEST(Planning, EndsEveryRankWithTheErrorOfTheFirst) {
  on_ranks(2, [&] {
    DistributedModel model(make_net());
    model.set_partition("frist", 1);
    auto step = smp::step([&](Tensor x) { return model(x); });
    EXPECT_THAT(refusal<UsageError>([&] {
                  step(torch::ones({4, 4}));
                }),
                AllOf(HasSubstr("frist"), HasSubstr("first")));
  });
  EXPECT_THAT(refusal<ResourceError>([] { train(two_microbatches(), 9); }), HasSubstr("stages"));
}

TEST(Planning, WantsThePinsOfAllRanksToBeEqual) {
  on_ranks(2, [&] {
    DistributedModel model(make_net());
    model.set_partition("last", rank());
    EXPECT_THAT(refusal<UsageError>([&] { model.place(); }), HasSubstr("rank 1 and rank 0 differ"));
  });
}

// ---- weights that others read, values that are not there yet -----------------------------------

/// Reads the table of its embedding, as language models do.
struct TiedImpl : torch::nn::Module {
  TiedImpl() : embed(register_module("embed", nn::Embedding(8, 4))) {}
  Tensor forward(const Tensor& tokens) { return embed(tokens).matmul(embed->weight.t()); }
  nn::Embedding embed;
};
SMP_MODULE(Tied);

TEST(Planning, RefusesAPinThatPartsAWeightFromWhoReadsIt) {
  on_ranks(2, [] {
    DistributedModel model(Tied{});
    model.set_partition("embed", 1);
    auto step = smp::step([&](const Tensor& x) { return model(x); });
    EXPECT_THAT(refusal<UsageError>([&] {
                  step(torch::zeros({4, 2}, torch::kLong));
                }),
                AllOf(HasSubstr("embed.weight"), HasSubstr("(placed on stage 0)"),
                      HasSubstr("\"embed\" (placed on stage 1)")));
    EXPECT_FALSE(model.partitioned());
  });
}

TEST(Tracing, SaysThatADelayedModelCannotBeTimed) {
  const auto said = [](bool delayed, int repeats) {
    const base::LogCapture log;
    auto config = two_microbatches();
    config.trace_repeats = repeats;
    run_local(
        2,
        [&] {
          std::optional<delay_param_initialization> delay;
          if (delayed) delay.emplace();
          DistributedModel model(make_net());
          delay.reset();
          auto step = smp::step([&](Tensor x) { return model(x); });
          step(torch::ones({4, 4}));
        },
        config);
    return log.text();
  };
  EXPECT_THAT(said(true, 2), HasSubstr("trace_repeats is ignored"));
  EXPECT_THAT(said(false, 2), testing::Not(HasSubstr("trace_repeats")));
  EXPECT_THAT(said(true, 0), testing::Not(HasSubstr("trace_repeats")));
}

/// How many times its layer runs depends on values.
struct LoopImpl : torch::nn::Module {
  LoopImpl()
      : layer(register_module("layer", nn::Linear(4, 4))),
        last(register_module("last", nn::Linear(4, 1))) {}
  Tensor forward(Tensor x) {
    for (int i = 0; i < 3 && x.abs().max().item<double>() < 100; ++i) x = layer(x);
    return last(x);
  }
  nn::Linear layer, last;
};
SMP_MODULE(Loop);

TEST(Tracing, OfADelayedModelThatAsksForValuesAssumesSome) {
  const auto losses = [](bool delayed, int ranks) {
    std::vector<double> losses;
    run_local(
        ranks,
        [&] {
          torch::manual_seed(1);
          std::optional<delay_param_initialization> delay;
          if (delayed) delay.emplace();
          DistributedModel model(Loop{});
          delay.reset();
          auto train = smp::step([&](const Tensor& x) {
            auto loss = model(x).pow(2).mean();
            model.backward(loss);
            return loss;
          });
          for (int i = 0; i < 2; ++i) {
            const auto loss = train(torch::ones({4, 4})).reduce_mean().item<double>();
            if (rank() == 0) losses.push_back(loss);
          }
          EXPECT_TRUE(model.local_parameters().size() < 4 || ranks == 1);
        },
        two_microbatches());
    return losses;
  };
  const auto whole = losses(false, 1);
  const base::LogCapture log;
  EXPECT_EQ(losses(true, 2), whole);
  EXPECT_THAT(log.text(), testing::Not(HasSubstr("modules are counted instead")));
}

/// Asks for the `times`-th row that it finds, and for how many there are.
struct PickyImpl : torch::nn::Module {
  PickyImpl() : layer(register_module("layer", nn::Linear(4, 4))) {}
  Tensor forward(Tensor x) {
    if (waits) {
      while (x[0].sum().item<float>() < 7) x = x + 1;
    }
    const auto row = x.argmax(0)[0].item<std::int64_t>();
    return layer(x) + x[row] + ((x.max() > 3).item<bool>() ? 1 : 0);
  }
  nn::Linear layer;
  bool waits = false;
};
SMP_MODULE(Picky);
struct PickyNetImpl : torch::nn::Module {
  PickyNetImpl()
      : first(register_module("first", nn::Linear(4, 4))),
        picky(register_module("picky", Picky())) {}
  Tensor forward(Tensor x) { return picky(first(x)); }
  nn::Linear first;
  Picky picky;
};
SMP_MODULE(PickyNet);

/// What the plan's table and the log say of a delayed one.
std::pair<std::string, std::string> said_of_picky(std::int64_t rows, bool waits) {
  std::pair<std::string, std::string> said;
  const base::LogCapture log;
  run_local(
      2,
      [&] {
        std::optional<delay_param_initialization> delay;
        delay.emplace();
        PickyNet net;
        net->picky->waits = waits;
        DistributedModel model(net);
        delay.reset();
        auto train = smp::step([&](const Tensor& x) { model.backward(model(x).mean()); });
        train(torch::full({2 * rows, 4}, 1.75));  // of which the four of a row sum to 7
        if (rank() == 0) said.first = model.plan().table();
      },
      two_microbatches());
  said.second = log.text();
  return said;
}

TEST(Tracing, OnlyTheModuleThatAsksForValuesIsUncertain) {
  for (const std::int64_t rows : {3, 1}) {  // of one there is no row 1
    const auto [table, log] = said_of_picky(rows, false);
    EXPECT_THAT(table, AllOf(HasSubstr("costs from operators"),
                             HasSubstr("costs: the forward of picky asks for values of tensors, "
                                       "and was given"),
                             HasSubstr(rows == 1 ? "given 0," : "given 1,"),
                             testing::Not(HasSubstr("forward of first"))));
    EXPECT_THAT(log, testing::Not(HasSubstr("counted instead")));
  }
}

TEST(Tracing, FallsBackToCountsWhereItWouldAskForEver) {
  const auto [table, log] = said_of_picky(1, true);
  EXPECT_THAT(log, AllOf(HasSubstr("modules are counted instead"), HasSubstr("asked for 10000"),
                         HasSubstr("were given 1, then 0")));
}

// ---- plans of earlier starts -------------------------------------------------------------------

class PlanCache : public testing::Test {
 protected:
  PlanCache() {
    unsetenv("SMP_PLAN_CACHE");  // by which all other tests keep nothing
    folder_ = testing::TempDir() + "smp_plan_cache_" +
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    config_ = two_microbatches();
    config_.plan_cache = folder_;
  }
  ~PlanCache() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> files() const {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      if (entry.path().extension() == ".json") all.push_back(entry.path().string());
    }
    return all;
  }

  std::string folder_;
  Config config_;
};

TEST_F(PlanCache, MakesTheSecondStartSkipTracing) {
  const auto first = train(config_);
  EXPECT_EQ(first.bodies.traced, kTrial);
  ASSERT_EQ(files().size(), 1);
  const auto second = train(config_);
  EXPECT_EQ(second.bodies.traced, 0);
  EXPECT_THAT(second.log, HasSubstr(files()[0]));
  EXPECT_EQ(first.losses, second.losses);
}

TEST_F(PlanCache, IsAskedForThisVeryRun) {
  train(config_);
  EXPECT_EQ(train(config_, 2, 8).bodies.traced, kTrial) << "another batch";
  EXPECT_EQ(train(config_, 3).bodies.traced, kTrial) << "more stages";
  config_.memory_weight = 0.5;
  EXPECT_EQ(train(config_).bodies.traced, kTrial) << "another setting";
  config_.pipeline = "simple";
  EXPECT_EQ(train(config_).bodies.traced, kTrial) << "another schedule";
  EXPECT_EQ(files().size(), 5);
}

TEST_F(PlanCache, IsIgnoredWithAWarningIfItsFileIsBroken) {
  train(config_);
  base::write_file(files()[0], "{\"format\": ");
  const auto again = train(config_);
  EXPECT_EQ(again.bodies.traced, kTrial);
  EXPECT_THAT(again.log, HasSubstr("not used"));
  EXPECT_EQ(train(config_).bodies.traced, 0) << "it was written anew";
}

TEST_F(PlanCache, DoesWithoutASimulationWhoseFileIsBroken) {
  train(config_);
  base::write_file(files()[0] + ".trace", "{\"format\": ");
  const auto again = train(config_);
  EXPECT_EQ(again.bodies.traced, 0) << "the plan itself is whole";
  EXPECT_THAT(again.log, HasSubstr("simulated timeline of an earlier start is not used"));
}

TEST_F(PlanCache, ThatCannotBeWrittenCostsAWarning) {
  base::write_file(folder_, "a file, not a folder");
  const auto outcome = train(config_);
  EXPECT_EQ(outcome.bodies.real, 4);
  EXPECT_THAT(outcome.log, HasSubstr("not kept"));
}

TEST_F(PlanCache, KeepsNoPlanOfCountedModules) {
  config_.skip_tracing = true;
  train(config_);
  EXPECT_FALSE(base::file_exists(folder_));
}

}  // namespace tracing_test
}  // namespace smp
