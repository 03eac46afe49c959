// What a plan says of itself: sums, bytes across borders, reasons.
#include "partition/plan/explain.h"

#include <gmock/gmock.h>

#include "partition/model/cut_bytes.h"
#include "partition/plan/plan_example.h"
#include "partition/plan/plan_reasons.h"

namespace smp::partitioning {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

PlanReasons reasons_of(const PlanExample& example) {
  std::vector<std::int64_t> memory;
  for (const StageMemory& stage : example.memory) memory.push_back(stage.most());
  return plan_reasons(example.tree, example.trace, example.costs, example.machine, example.stages,
                      example.by_hand, memory);
}

// Four equal modules, the first two on stage 0.
PlanExample four_in_a_row() {
  TreeBuilder build;
  for (const char* name : {"a", "b", "c", "d"}) build.module(name, 1000);
  return example_of(build.tree, {0, 0, 0, 1, 1}, 2);
}

std::vector<std::pair<std::int64_t, std::int64_t>> pairs(const std::vector<CutBytes>& cuts) {
  std::vector<std::pair<std::int64_t, std::int64_t>> all;
  for (const CutBytes& cut : cuts) all.emplace_back(cut.in, cut.out);
  return all;
}

TEST(Explain, SharesOfStagesAddUpToTheWholeModel) {
  const PartitionPlan plan = t5_example(12, 5).plan();
  double cost = 0;
  std::int64_t weights = 0;
  for (const StageSummary& stage : plan.summary()->stages) {
    cost += stage.cost;
    weights += stage.weights;
  }
  double of_modules = 0;
  std::int64_t bytes = 0;
  for (const auto& row : plan.rows()) {
    of_modules += row.cost;
    bytes += row.bytes;
  }
  EXPECT_NEAR(cost, 1, 1e-9);
  EXPECT_NEAR(of_modules, 1, 1e-9);
  EXPECT_EQ(weights, bytes);
}

TEST(Explain, TellsWhereItsNumbersComeFrom) {
  PlanExample example = four_in_a_row();
  for (const auto& [source, name] : {std::pair(simulate::CostSource::kCounts, "counts"),
                                     std::pair(simulate::CostSource::kEstimated, "operators"),
                                     std::pair(simulate::CostSource::kMeasured, "clock")}) {
    example.trace.source = source;
    EXPECT_EQ(example.plan().summary()->costs, name);
  }
}

TEST(Explain, TakesTheLimitOfEachStage) {
  PlanExample example = four_in_a_row();
  EXPECT_EQ(example.plan().summary()->stages[1].memory_limit, 0);
  example.machine.memory = {1 << 20, 2 << 20};
  EXPECT_EQ(example.plan().summary()->stages[1].memory_limit, 2 << 20);
}

TEST(CutBytesOfAPlan, CountOnlyCallsThatLeaveTheStageOfTheirCaller) {
  PlanExample example = four_in_a_row();
  example.machine.promised_outputs = false;
  // c and d: 1 KiB in and 2 KiB out each, from and to stage 0.
  EXPECT_THAT(pairs(cut_bytes(example.trace, example.stages, example.machine)),
              ElementsAre(std::pair(4096, 2048), std::pair(2048, 4096)));
}

TEST(CutBytesOfAPlan, AreNotThoseOfResultsThatStayOnTheirStage) {
  PlanExample example = four_in_a_row();
  EXPECT_THAT(pairs(cut_bytes(example.trace, example.stages, example.machine)),
              ElementsAre(std::pair(2048, 1024), std::pair(1024, 2048)))
      << "c's result goes to d";
  example.trace.calls.back().before.seconds = 1;
  EXPECT_THAT(pairs(cut_bytes(example.trace, example.stages, example.machine)),
              ElementsAre(std::pair(4096, 2048), std::pair(2048, 4096)))
      << "the caller computes with it";
}

TEST(CutBytesOfAPlan, GoFromStageToStageWithoutTheirCaller) {
  PlanExample example = four_in_a_row();
  example.machine.stages = 3;
  example.stages = {0, 0, 0, 1, 2};
  EXPECT_THAT(pairs(cut_bytes(example.trace, example.stages, example.machine)),
              ElementsAre(std::pair(2048, 1024), std::pair(1024, 1024), std::pair(1024, 2048)));
}

TEST(CutBytesOfAPlan, AreHandedOnWithinASequential) {
  PlanExample example = four_in_a_row();
  example.trace.calls[0].sequential = true;
  EXPECT_THAT(pairs(cut_bytes(example.trace, example.stages, example.machine)),
              ElementsAre(std::pair(2048, 1024), std::pair(1024, 2048)));
  example.stages = {0, 1, 0, 1, 1};
  example.trace.calls[2].after.seconds = 1;  // else b would only pass a's result on
  EXPECT_THAT(pairs(cut_bytes(example.trace, example.stages, example.machine)),
              ElementsAre(std::pair(4096, 2048), std::pair(2048, 4096)));
}

TEST(CutBytesOfAPlan, CountACallOfTheBodyFromStageZero) {
  TreeBuilder build;
  PlanExample example = example_of(build.tree, {1}, 2);
  EXPECT_THAT(pairs(cut_bytes(example.trace, example.stages, example.machine)),
              ElementsAre(std::pair(2048, 1024), std::pair(1024, 2048)));
}

TEST(PlanReasons, CompareWithTheStageThatRunsRightBefore) {
  EXPECT_THAT(reasons_of(four_in_a_row()).stages,
              ElementsAre("the model itself runs here",
                          "balance: c would raise stage 0 from 0.500 to 0.750"));
}

TEST(PlanReasons, ClaimNothingWhereALaterCutWouldBeAsGood) {
  PlanExample example = four_in_a_row();
  example.stages = {0, 0, 1, 1, 1};
  EXPECT_EQ(reasons_of(example).stages[1], "balance: 0.750 here, 0.250 on stage 0");
}

TEST(PlanReasons, WeighTheSpeedOfStages) {
  PlanExample example = four_in_a_row();
  example.stages = {0, 0, 0, 0, 1};
  example.machine.speeds = {3, 1};
  EXPECT_EQ(reasons_of(example).stages[1], "balance: d would raise stage 0 from 0.250 to 0.333");
}

TEST(PlanReasons, NameMemoryWhereItIsWhatForbidsMore) {
  PlanExample example = four_in_a_row();
  example.machine.memory = {10'500, 1 << 20};
  EXPECT_EQ(reasons_of(example).stages[1],
            "memory: stage 0 holds 9.8 KiB of 10.3 KiB, too much for c as well");
}

TEST(PlanReasons, FollowTheOrderOfExecutionAndNotOfRegistration) {
  PlanExample example = four_in_a_row();
  std::swap(example.trace.calls[1].module, example.trace.calls[4].module);
  example.stages = {0, 1, 1, 0, 0};  // runs d, b, c, a
  EXPECT_EQ(reasons_of(example).stages[1], "balance: b would raise stage 0 from 0.500 to 0.750");
}

TEST(PlanReasons, LookIntoAModuleWhosePartsAreSpread) {
  TreeBuilder build;
  build.module("first", 1000);
  build.module("outer");
  for (const char* name : {"outer.a", "outer.b"}) build.module(name, 1000);
  PlanExample example = example_of(build.tree, {0, 0, 1, 1, 2}, 3);
  EXPECT_EQ(reasons_of(example).stages[1],
            "balance: outer.a would raise stage 0 from 0.333 to 0.667");
  EXPECT_EQ(reasons_of(example).stages[2],
            "balance: outer.b would raise stage 1 from 0.333 to 0.667");
}

TEST(PlanReasons, NameTiedWeights) {
  const PlanReasons reasons = reasons_of(t5_example());
  EXPECT_EQ(reasons.stages[0], "the model itself runs here; lm_head tied with shared");
  EXPECT_EQ(reasons.modules.back(), "tied with shared");
}

TEST(PlanReasons, CountTiesBeyondTheFirstTwo) {
  TreeBuilder build;
  const int table = build.weight(build.module("table"), "weight", 400);
  for (const char* name : {"a", "b", "c", "d"}) build.tie(build.module(name), table);
  PlanExample example = example_of(build.tree, {0, 1, 1, 1, 1, 1}, 2);
  EXPECT_THAT(reasons_of(example).stages[1], HasSubstr("; a, b and 2 more tied with table"));
}

TEST(PlanReasons, NameWhoReadsAWeightOfAnotherModule) {
  PlanExample example = four_in_a_row();
  example.trace.foreign_uses = {{0, 3}};
  EXPECT_EQ(reasons_of(example).modules[4], "read by the model");
}

TEST(PlanReasons, NameWhoPlacedAModuleByHand) {
  PlanExample example = four_in_a_row();
  example.by_hand = {"", "", "", "placed by set_partition", "placed by set_partition"};
  const PlanReasons reasons = reasons_of(example);
  EXPECT_EQ(reasons.stages[1], "placed by set_partition");
  EXPECT_EQ(reasons.modules[3], "placed by set_partition");
  EXPECT_EQ(reasons.modules[0], "");
}

TEST(PlanReasons, SayThatAStageIsEmpty) {
  PlanExample example = four_in_a_row();
  example.machine.stages = 3;
  EXPECT_EQ(reasons_of(example).stages[2], "no module was left for it");
}

}  // namespace
}  // namespace smp::partitioning
