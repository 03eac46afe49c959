// What makes one placement better than another.
#include "partition/search/step_judge.h"

#include <gtest/gtest.h>

#include "partition/model/count_trace.h"
#include "partition/search/strategies.h"
#include "partition/search/tree_builder.h"
#include "schedule/schedule.h"

namespace smp::partitioning {
namespace {

Judgement judgement(double seconds, double to_bound, int split_modules = 0) {
  Judgement made;
  made.step.seconds = seconds;
  made.to_bound = to_bound;
  made.balance_weight = 0.5;
  made.split_modules = split_modules;
  return made;
}

TEST(StepJudge, PrefersShortStepsThenBalanceThenWholeModules) {
  EXPECT_LT(judgement(1, 1).value(), judgement(1.1, 1).value());
  EXPECT_LT(judgement(1, 1.04).value(), judgement(1, 1.05).value());
  EXPECT_LT(judgement(1, 1).value(), judgement(1, 1.01).value()) << "there is no threshold";
  EXPECT_LT(judgement(1, 1.1).value(), judgement(1.06, 1).value()) << "time counts more";
  EXPECT_LT(judgement(1.04, 1).value(), judgement(1, 1.1).value());
  EXPECT_LT(judgement(1, 1, 1).value(), judgement(1, 1, 2).value());
  EXPECT_LT(judgement(1, 1, 99).value(), judgement(1.016, 1).value()) << "however many are split";
  auto too_large = judgement(1, 1);
  too_large.missing = 1;
  EXPECT_LT(judgement(1000, 2, 99).value(), too_large.value());
}

TEST(StepJudge, MemoryCountsWhereAStageIsNearlyFull) {
  const auto filled = [](double crowding, double memory_weight) {
    auto made = judgement(1, 1);
    made.crowding = crowding;
    made.memory_weight = memory_weight;
    return made.value();
  };
  EXPECT_EQ(filled(0, 1), judgement(1, 1).value());
  EXPECT_GT(filled(1, 0.8), filled(0.5, 0.8));
  EXPECT_LE(filled(1, 0.8), 1.02) << "a full stage is no reason for a slow step";
  EXPECT_EQ(filled(1, 0), filled(0, 0));
}

TEST(StepJudge, AStageIsNearlyFullFromNineTenthsOn) {
  TreeBuilder build;
  build.module("a", 1000);
  const simulate::Trace trace = count_trace(build.tree);
  const auto costs = make_cost_tree(build.tree, trace, nothing_fixed(build.tree), {});
  simulate::Machine machine;
  const auto schedule = schedule::make_schedule("simple", {});
  const auto crowding = [&](std::int64_t limit) {
    machine.memory = {limit};
    const StepJudge judge(build.tree, trace, costs, machine,
                          {.schedule = schedule.get(), .optimizer_ratio = 0});
    return judge.judge(std::vector<int>(costs.nodes.size(), 0), 1).crowding;
  };
  EXPECT_EQ(crowding(2000 * 10 / 8), 0) << "weights and gradients are 2000 bytes";
  EXPECT_NEAR(crowding(2000 * 100 / 95), 0.5, 0.01);
  EXPECT_EQ(crowding(2000), 1);
  EXPECT_EQ(crowding(1000), 1);
}

TEST(StepJudge, CountsModulesWhosePartsAreApart) {
  TreeBuilder build;
  for (const char* path : {"a", "a.b", "a.b.c", "a.b.d", "e", "e.f"}) build.module(path, 400);
  const simulate::Trace trace = count_trace(build.tree);
  const auto costs = make_cost_tree(build.tree, trace, nothing_fixed(build.tree), {});
  simulate::Machine machine;
  machine.stages = 2;
  const auto schedule = schedule::make_schedule("simple", {});
  const StepJudge judge(build.tree, trace, costs, machine, {.schedule = schedule.get()});
  std::vector<int> stages(costs.nodes.size(), 0);
  ASSERT_EQ(stages.size(), build.tree.nodes.size()) << "no two modules are placed as one";
  EXPECT_EQ(judge.judge(stages, 1).split_modules, 0);
  stages[costs.node_of_module[build.tree.find("a.b.c")]] = 1;
  EXPECT_EQ(judge.judge(stages, 1).split_modules, 3) << "the model, a and a.b";
  stages[costs.node_of_module[build.tree.find("e.f")]] = 1;
  EXPECT_EQ(judge.judge(stages, 1).split_modules, 4);
}

}  // namespace
}  // namespace smp::partitioning
