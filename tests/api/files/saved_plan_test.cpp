// A plan file of one run makes another that is like it, whatever that one's defaults are.
#include "smp/program/saved_plan.h"

#include <gmock/gmock.h>
#include <torch/optim/sgd.h>

#include <string>
#include <vector>

#include "api/rank/rank.h"
#include "api/two_ranks.h"
#include "base/files.h"

namespace smp {
namespace saved_plan_test {

using at::Tensor;
using testing::HasSubstr;

struct NetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return c(drop(b(a(x)))); }
  nn::Linear a{register_module("a", nn::Linear(8, 8))};
  nn::Linear b{register_module("b", nn::Linear(8, 8))};
  nn::Dropout drop{register_module("drop", nn::Dropout(0.5))};
  nn::Linear c{register_module("c", nn::Linear(8, 8))};
};
SMP_MODULE(Net);

/// What a run came to.
struct Outcome {
  std::vector<Tensor> weights;  ///< of all ranks
  std::string schedule;
  int microbatches = 0;
  int stage_of_b = -1;
};

/// Trains on two ranks of one process.
/// @param save  where rank 0 writes the plan; empty: nowhere
/// @param pin   stage of `b` by the program; -1: it has no say
Outcome train(Config config, const std::string& save = {}, int pin = -1) {
  config.plan_cache = "off";
  Outcome outcome;
  run_local(
      2,
      [&] {
        torch::manual_seed(1);
        Net net;
        DistributedModel model(net);
        if (pin >= 0) model.set_partition("b", pin);
        DistributedOptimizer optimizer(model, torch::optim::SGD(model.parameters(), 0.1));
        auto step_of = smp::step([&](const Tensor& x) {
          const auto loss = model(x).pow(2).mean();
          model.backward(loss);
          return loss;
        });
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          step_of(torch::arange(96, torch::kFloat).reshape({12, 8}) / 96);
          optimizer.step();
        }
        if (!save.empty()) save_plan(model, save);
        for (const auto& [name, weight] : model.local_named_parameters()) {
          outcome.weights.push_back(weight.detach().clone());
        }
        const auto& own = Rank::current();
        outcome.schedule = own.schedule().name();
        outcome.microbatches = num_microbatches();
        outcome.stage_of_b = model.plan().stage_of("b");
      },
      config);
  return outcome;
}

bool same_bits(const Outcome& one, const Outcome& other) {
  if (one.weights.size() != other.weights.size()) return false;
  for (std::size_t i = 0; i < one.weights.size(); ++i) {
    if (!torch::equal(one.weights[i], other.weights[i])) return false;
  }
  return true;
}

class SavedPlans : public testing::Test {
 protected:
  const std::string path_ = testing::TempDir() + "smp_saved_plan_test.json";
};

TEST_F(SavedPlans, MakeRunsOfTheSameBitsAndSchedule) {
  for (const char* pipeline : {"1f1b+1", "simple", "interleaved"}) {
    SCOPED_TRACE(pipeline);
    Config config;
    config.microbatches = 4;
    config.pipeline = pipeline;
    config.seed = 7;
    config.loss = "sum";
    const int unusual = 1 - train(config).stage_of_b;
    const auto first = train(config, path_, unusual);
    ASSERT_EQ(first.stage_of_b, unusual);

    Config other;
    other.plan_file = path_;
    const auto second = train(other);
    EXPECT_TRUE(same_bits(first, second));
    EXPECT_EQ(second.schedule, first.schedule);
    EXPECT_EQ(second.microbatches, 4);
    EXPECT_EQ(second.stage_of_b, unusual);
    EXPECT_FALSE(same_bits(first, train({}, {}, unusual))) << "its own defaults are other ones";
  }
}

TEST_F(SavedPlans, BringListsAlong) {
  const auto lists = testing::TempDir() + "smp_saved_plan_test.txt";
  base::write_file(lists,
                   "smp-schedule 1\nmicrobatches 2\nrank 0: F0 F1 B1 B0\nrank 1: F0 F1 B1 B0\n");
  Config config;
  config.microbatches = 2;
  config.pipeline = "file:" + lists;
  const auto first = train(config, path_);
  base::write_file(lists, "gone");
  Config other;
  other.plan_file = path_;
  const auto second = train(other, path_ + ".again");
  EXPECT_TRUE(same_bits(first, second));
  EXPECT_EQ(second.schedule, "file:" + path_);
  EXPECT_THAT(base::read_file(path_ + ".again"), HasSubstr("F0 F1 B1 B0\\nrank 1"));
}

TEST_F(SavedPlans, AreNotWrittenWithoutAPlanNorWhereNobodyCan) {
  on_ranks(2, [&] {
    Net net;
    DistributedModel model(net);
    EXPECT_THAT(refusal<UsageError>([&] { save_plan(model, path_); }), HasSubstr("no plan yet"));
    model.place();
    EXPECT_THAT(refusal<ResourceError>([&] { save_plan(model, "/nowhere/plan.json"); }),
                HasSubstr("/nowhere/plan.json"));
  });
}

TEST_F(SavedPlans, RefuseWhatTheProgramSaysOtherwise) {
  Config config;
  config.microbatches = 4;
  train(config, path_);
  config.microbatches = 2;
  config.plan_file = path_;
  EXPECT_THAT(refusal<UsageError>([&] { train(config); }),
              HasSubstr("microbatches = 2 (Config in code) contradicts microbatches = 4"));
}

}  // namespace saved_plan_test
}  // namespace smp
