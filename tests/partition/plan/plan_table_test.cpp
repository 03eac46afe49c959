// How a plan reads in a terminal.
#include "partition/plan/plan_table.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <sstream>

#include "partition/plan/plan_check.h"
#include "partition/plan/plan_example.h"
#include "partition/search/partitioner.h"
#include "partition/text/text_table.h"

namespace smp::partitioning {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> all;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) all.push_back(line);
  return all;
}

TEST(PlanTable, HasThreeColumnsForAPlanWithoutPredictions) {
  TreeBuilder build;
  build.module("embed", 4000);
  build.module("head", 2000);
  std::vector<PartitionPlan::Row> rows = plan_of(build.tree, {0, 0, 1}, 2).rows();
  EXPECT_EQ(PartitionPlan(2, rows).table(),
            "stage  modules  parameters  weights  share\n"
            "    0  embed         1.0 K  3.9 KiB  ▇▇▇▇▇▇▇▇▇▇\n"
            "    1  head            500  2.0 KiB  ▇▇▇▇▇░░░░░\n");
}

TEST(PlanTable, NamesNoTimesWhereModulesWereOnlyCounted) {
  const auto plan = t5_example(6, 2).plan();
  auto summary = *plan.summary();
  EXPECT_THAT(plan.table(), AllOf(HasSubstr("131 ms"), HasSubstr("step")));
  summary.costs = "counts";
  const auto text = PartitionPlan(plan.pp_size(), plan.rows(), summary).table();
  EXPECT_THAT(text, AllOf(Not(HasSubstr(" ms")), Not(HasSubstr("  step")),
                          HasSubstr("strategy    bubble  bottleneck"),
                          HasSubstr("costs are counts of modules")));
}

TEST(PlanTable, FitsTheTerminal) {
  for (const int width : {80, 100, 140}) {
    int widest = 0;
    for (const auto& line : lines(t5_example(6, 2).plan().table(width))) {
      widest = std::max(widest, text_width(line));
    }
    EXPECT_LE(widest, width);
  }
  EXPECT_NE(t5_example(6, 2).plan().table(80), t5_example(6, 2).plan().table(140));
}

TEST(PlanTable, SaysWhatThePlanPromisesAndWhyEachStageBegins) {
  EXPECT_EQ(t5_example(6, 2).plan().table(),
            R"(2 stages, 8 microbatches a step, schedule interleaved

strategy      step  bubble  bottleneck
search      131 ms    12 %        1.02  chosen
tree        164 ms    25 %        1.20
contiguous  140 ms    15 %        1.02

stage  modules                                   parameters    memory    cost   cut in  cut out
    0  shared, encoder.block[0:4], lm_head            2.1 M  40.0 MiB  50.0 %  2.0 KiB  1.0 KiB
       why: the model itself runs here; lm_head tied with shared
    1  encoder.block[4:6], encoder.final_norm,        2.1 M  40.0 MiB  50.0 %  1.0 KiB  2.0 KiB
       decoder.block[0:6], decoder.final_norm
       why: balance: encoder.block.4 would raise stage 0 from 0.500 to 0.562
predicted, not measured, for a core a stage; costs from operators
bottleneck: cost of the largest stage over a bound that no split goes below
memory: at most, with all microbatches in flight at their worst on that stage
cut: bytes that enter and leave a stage per microbatch in the forward pass
)");
}

/// Its ratio says nothing of the split.
TEST(PlanTable, NamesAModuleThatIsTheBoundByItself) {
  const auto table_with = [](std::int64_t embedding) {
    TreeBuilder build;
    build.module("embed", embedding);
    for (const char* path : {"a", "b", "c"}) build.module(path, 400);
    PartitionOptions options;
    options.pp_size = 2;
    options.microbatches = 4;
    options.active_microbatches = 4;
    options.memory_weight = 1;
    return make_plan(build.tree, options).table();
  };
  EXPECT_THAT(table_with(40'000),
              HasSubstr("cost of the largest stage, which is \"embed\" alone, over"));
  EXPECT_THAT(table_with(400),
              HasSubstr("cost of the largest stage over a bound that no split goes below"));
}

TEST(PlanTable, NamesTheStageThatIsClosestToItsLimit) {
  PlanExample example = t5_example();
  EXPECT_THAT(example.plan().table(), Not(HasSubstr("limit")));
  example.machine.memory = {40 << 20, 28 << 20, 40 << 20};
  EXPECT_THAT(
      example.plan().table(),
      HasSubstr("memory: stage 1 comes closest to its limit, at most 27.5 MiB of 28.0 MiB"));
}

TEST(PlanTable, SaysWhatDoesNotFit) {
  PlanExample example = t5_example();
  example.machine.memory = {40 << 20, 20 << 20, 40 << 20};
  auto summary = *example.plan().summary();
  summary.chosen.fits = false;
  summary.others.at(0).fits = false;
  const PartitionPlan plan(3, example.plan().rows(), summary);
  EXPECT_THAT(plan.table(), AllOf(HasSubstr("chosen, does not fit"), HasSubstr("  does not fit\n"),
                                  HasSubstr("memory: stage 1 may exceed its limit most, at most "
                                            "27.5 MiB of 20.0 MiB")));
  const auto again = PartitionPlan::from_json(plan.to_json(), "test");
  EXPECT_EQ(again.to_json(), plan.to_json());
  EXPECT_THAT(again.table(), HasSubstr("chosen, does not fit"));
}

/// "As much as there is": whatever configuration takes.
TEST(PlanTable, IsReadWithAnyLimit) {
  PlanExample example = t5_example();
  example.machine.memory.assign(3, std::int64_t{1} << 60);
  const auto json = example.plan().to_json();
  EXPECT_EQ(PartitionPlan::from_json(json, "test").to_json(), json);
}

TEST(PlanTable, SaysWhichCoresThePredictionPresumes) {
  PlanExample example = t5_example();
  example.machine.oversubscribed = {{{0, 1}, 1}};
  EXPECT_THAT(example.plan().table(), HasSubstr("not measured, for 3 stages on 2 cores; costs"));
  const std::string json = example.plan().to_json();
  EXPECT_EQ(PartitionPlan::from_json(json, "test").to_json(), json);
}

TEST(PlanTable, SaysWhatTheStagesWereTakenToBe) {
  PlanExample example = t5_example();
  EXPECT_THAT(example.plan().table(), Not(HasSubstr("messages:")));
  example.machine.devices = {"h100", "h100", "h100"};
  EXPECT_THAT(example.plan().table(),
              AllOf(HasSubstr("not measured, for 3 h100; costs from operators"),
                    HasSubstr("messages: 20 us and 4 GB/s\n"), Not(HasSubstr("  on "))));
  example.machine.devices = {"h100", "h100", "cpu"};
  example.machine.places = {{0, 0, 0}, {0, 0, 0}, {1, 0, 0}};
  const auto plan = example.plan();
  EXPECT_THAT(
      plan.table(),
      AllOf(HasSubstr("for 2 h100 and 1 cpu; costs"), HasSubstr("stage  on    node  modules"),
            HasSubstr("    2  cpu      1  "), HasSubstr("40 us and 12.5 GB/s")));
  const auto again = PartitionPlan::from_json(plan.to_json(), "test");
  EXPECT_EQ(again.to_json(), plan.to_json());
  EXPECT_THAT(again.table(),
              AllOf(HasSubstr("for 2 h100 and 1 cpu; costs"), HasSubstr("40 us and 12.5 GB/s")));
}

TEST(PlanTable, SaysHowFarTheStepIsFromItsBound) {
  PlanExample example = t5_example();
  auto summary = *example.plan().summary();
  summary.step_bound = 0.1;
  const PartitionPlan plan(3, example.plan().rows(), summary);
  EXPECT_THAT(plan.table(), HasSubstr("step: at most 31 % above the 100 ms that any placement"));
  EXPECT_THAT(PartitionPlan::from_json(plan.to_json(), "test").table(),
              HasSubstr("31 % above the 100 ms"));
  EXPECT_THAT(example.plan().table(), Not(HasSubstr("that any placement")));
  summary.step_bound = summary.chosen.step_seconds;  // as of a single stage
  EXPECT_THAT(PartitionPlan(3, example.plan().rows(), summary).table(),
              HasSubstr("step: at most 0 % above"));
}

TEST(PlanTable, SaysWhichModulesCannotLeaveTheirParent) {
  TreeBuilder build;
  build.module("routed", 400);
  for (int i = 0; i < 5; ++i) build.bound("routed.plain" + std::to_string(i), 40);
  const std::string table = example_of(build.tree, {0, 0, 0, 0, 0, 0, 0}, 1).plan().table();
  EXPECT_THAT(table, HasSubstr("routed.plain0 stays with its parent: its class was not declared"));
  EXPECT_THAT(table, HasSubstr("2 more modules stay like that"));
}

TEST(PlanTable, FitsATerminal) {
  for (const auto& [blocks, stages] : {std::pair(1, 1), std::pair(12, 7), std::pair(100, 64)}) {
    const std::string table = t5_example(blocks, stages).plan().table();
    for (const std::string& line : lines(table)) EXPECT_LE(text_width(line), 100) << line;
  }
}

}  // namespace
}  // namespace smp::partitioning
