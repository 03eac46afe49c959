// A plan by hand: its placement is followed, and the plan says what comes of it.
#include <gmock/gmock.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "api/two_ranks.h"
#include "base/files.h"
#include "base/log.h"
#include "support/refusal.h"

namespace smp {
namespace plan_file_test {

using at::Tensor;

struct NetImpl : torch::nn::Module {
  NetImpl()
      : a(register_module("a", nn::Linear(8, 8))),
        b(register_module("b", nn::Linear(8, 8))),
        c(register_module("c", nn::Linear(8, 8))) {}
  Tensor forward(const Tensor& x) { return c(b(a(x))); }
  nn::Linear a, b, c;
};
SMP_MODULE(Net);

class PlanFiles : public testing::Test {
 protected:
  PlanFiles()
      : path_((std::filesystem::temp_directory_path() / "smp_plan_file_test.json").string()) {}
  ~PlanFiles() override { std::filesystem::remove(path_); }

  /// The plan of rank 0 after a step.
  /// @param pinned  stage of `b` by the program; -1: it has no say
  static PartitionPlan plan_with(Config config, int pinned = -1) {
    config.microbatches = 2;
    config.plan_cache = "off";
    PartitionPlan plan;
    run_local(
        2,
        [&] {
          Net net;
          DistributedModel model(net);
          if (pinned >= 0) model.set_partition("b", pinned);
          auto train = smp::step([&](const Tensor& x) {
            const auto loss = model(x).pow(2).mean();
            model.backward(loss);
            return loss;
          });
          train(torch::ones({4, 8}));
          if (rank() == 0) plan = model.plan();
        },
        config);
    return plan;
  }

  /// Writes `plan` with `b` on the other stage.
  void write_moved(const PartitionPlan& plan) const {
    auto rows = plan.rows();
    for (auto& row : rows) {
      if (row.path == "b") row.pp_rank = 1 - row.pp_rank;
    }
    PartitionPlan(2, rows).write(path_);
  }

  const std::string path_;
};

TEST_F(PlanFiles, GetPredictions) {
  const auto made = plan_with({});
  write_moved(made);
  Config config;
  config.plan_file = path_;
  const auto moved = plan_with(config);
  EXPECT_NE(moved.stage_of("b"), made.stage_of("b"));
  for (const char* path : {"", "a", "c"}) EXPECT_EQ(moved.stage_of(path), made.stage_of(path));
  ASSERT_TRUE(moved.summary());
  EXPECT_EQ(moved.summary()->costs, "operators");
  EXPECT_EQ(moved.summary()->chosen.strategy, "by hand");
  EXPECT_GT(moved.summary()->chosen.step_seconds, 0);
  std::int64_t weights = 0;
  for (const auto& stage : moved.summary()->stages) {
    EXPECT_GT(stage.most_activations, 0);
    weights += stage.weights;
  }
  EXPECT_EQ(weights, 3 * (64 + 8) * 4);
}

/// With results of products held or not.
TEST_F(PlanFiles, SayWhatIsComputedAgain) {
  auto rows = plan_with({}).rows();
  for (auto& row : rows) {
    row.recomputed = row.path == "a" || row.path == "b";
    row.keeps_products = row.path == "b";
  }
  PartitionPlan(2, rows).write(path_);
  Config config;
  config.plan_file = path_;
  const auto plan = plan_with(config);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(plan.rows()[i].recomputed, rows[i].recomputed) << rows[i].path;
    EXPECT_EQ(plan.rows()[i].keeps_products, rows[i].keeps_products) << rows[i].path;
  }
  EXPECT_THAT(plan.table(), testing::HasSubstr("instead of held: a; but for products: b\n"));
}

/// A mistake in a file is no reason to try a model first.
TEST_F(PlanFiles, AreReadBeforeAnythingStarts) {
  Config config;
  config.plan_file = path_;
  bool began = false;
  const auto refusal_of_start = [&] {
    return refusal<UsageError>([&] {
      run_local(
          2, [&] { began = true; }, config);
    });
  };
  EXPECT_THAT(refusal_of_start(), testing::HasSubstr("cannot read " + path_));
  base::write_file(path_, R"({"format": "smp-plan", "version": 99})");
  EXPECT_THAT(refusal_of_start(), testing::HasSubstr(path_ + ": "));
  base::write_file(path_, R"({"b": "one"})");
  EXPECT_THAT(refusal_of_start(), testing::HasSubstr("must be an integer"));
  EXPECT_FALSE(began);
}

TEST_F(PlanFiles, AreReadOnce) {
  write_moved(plan_with({}));
  Config config;
  config.plan_file = path_;
  PartitionPlan plan;
  run_local(
      2,
      [&] {
        std::filesystem::remove(path_);  // by whoever tidies up after the start
        Net net;
        DistributedModel model(net);
        auto train = smp::step([&](const Tensor& x) { return model(x).sum(); });
        const torch::NoGradGuard no_grad;
        train(torch::ones({4, 8}));
        if (rank() == 0) plan = model.plan();
      },
      config);
  ASSERT_TRUE(plan.summary());
  EXPECT_EQ(plan.summary()->chosen.strategy, "by hand");
}

TEST_F(PlanFiles, OverruleTheProgramAndSaySo) {
  const auto made = plan_with({});
  write_moved(made);
  Config config;
  config.plan_file = path_;
  const base::LogCapture log;
  const int by_program = made.stage_of("b");
  EXPECT_NE(plan_with(config, by_program).stage_of("b"), by_program);
  EXPECT_THAT(log.text(),
              testing::AllOf(testing::HasSubstr("\"b\" is on stage "),
                             testing::HasSubstr("as the program (set_partition) does")));
}

TEST_F(PlanFiles, AreHeldToTheMemoryThatWasSet) {
  write_moved(plan_with({}));
  Config config;
  config.plan_file = path_;
  config.stage_memory = {1e-6};  // 1 KiB
  EXPECT_THROW(plan_with(config), ResourceError);
}

TEST_F(PlanFiles, AreWithinTheMemoryOfTheMachineByDefault) {
  const auto plan = plan_with({});
  for (const auto& stage : plan.summary()->stages) EXPECT_GT(stage.memory_limit, 1 << 20);
}

struct BigImpl : torch::nn::Module {
  BigImpl() : one(register_module("one", nn::Linear(64, 64))) {
    two = register_module("two", nn::Linear(64, 64));
  }
  Tensor forward(const Tensor& x) { return two(one(x)); }
  nn::Linear one, two = nullptr;
};
SMP_MODULE(Big);

/// How a session of `models` ends whose stages may take `kib` each: with an error, or "".
std::string end_with(int models, double kib) {
  Config config;
  config.microbatches = 1;
  config.plan_cache = "off";
  config.stage_memory = {kib / (1 << 20)};
  try {
    run_local(
        2,
        [&] {
          std::vector<std::unique_ptr<DistributedModel<Big>>> all;
          for (int i = 0; i < models; ++i) {
            Big big;
            all.push_back(std::make_unique<DistributedModel<Big>>(big));
          }
          auto train = smp::step([&](const Tensor& x) {
            auto y = x;
            for (auto& model : all) y = (*model)(y);
            const auto loss = y.mean();
            all.front()->backward(loss);
            return loss;
          });
          train(torch::ones({2, 64}));
        },
        config);
  } catch (const ResourceError& error) {
    return error.what();
  }
  return "";
}

/// Half of a model is a weight of 16.25 KiB, its gradient, twice as much of an optimizer, and once
/// more the gradient while it is computed: 81 KiB and some activations.
TEST(SharedMemory, IsSharedByTheModelsOfASession) {
  EXPECT_EQ(end_with(1, 90), "");
  EXPECT_THAT(end_with(1, 70), testing::StartsWith("no placement was found that fits"));
  EXPECT_THAT(end_with(1, 60), testing::StartsWith("the model does not fit"));
  EXPECT_THAT(end_with(2, 90), testing::HasSubstr("of the 2 models of this session"));
  EXPECT_EQ(end_with(2, 180), "");
}

}  // namespace plan_file_test
}  // namespace smp
