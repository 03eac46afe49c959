// What replicas add to a step, against cases computed by hand, and in the judgement of placements.
#include "partition/model/replica_sums.h"

#include <gtest/gtest.h>

#include "partition/model/count_trace.h"
#include "partition/search/partitioner.h"
#include "partition/search/step_judge.h"
#include "partition/search/strategies.h"
#include "partition/search/tree_builder.h"
#include "schedule/schedule.h"

namespace smp::partitioning {
namespace replica_sums_test {

using Replicas = simulate::Machine::Replicas;

/// Stage 0 works until 10, its last backward since 7; stage 1 until 6, since 5.
simulate::SimulatedStep two_stages() {
  simulate::SimulatedStep step;
  step.seconds = 10;
  step.ends = {10, 6};
  step.last_backwards = {7, 5};
  return step;
}

double seconds_after(const Replicas& replicas, const std::vector<std::int64_t>& bytes) {
  return replica_sum_seconds(two_stages(), replicas, bytes);
}

TEST(ReplicaSums, TakeTwiceTheShareOfTheOthers) {
  EXPECT_EQ(Replicas{}.seconds_for(1000), 0) << "there is one";
  Replicas four{4, {0.5, 100}};
  EXPECT_DOUBLE_EQ(four.seconds_for(1000), 2 * (0.5 + 0.75 * 1000 / 100));
  EXPECT_EQ(four.seconds_for(0), 0);
  four.all_get_sums = false;
  EXPECT_DOUBLE_EQ(four.seconds_for(1000), 0.5 + 0.75 * 1000 / 100);
}

TEST(ReplicaSums, FollowTheWorkOfTheirStage) {
  const Replicas two{2, {0, 100}};  // 100 bytes a second
  EXPECT_DOUBLE_EQ(seconds_after(two, {0, 0}), 0);
  EXPECT_DOUBLE_EQ(seconds_after(two, {100, 0}), 1);
  EXPECT_DOUBLE_EQ(seconds_after(two, {0, 300}), 0) << "stage 1 has time until then";
  EXPECT_DOUBLE_EQ(seconds_after(two, {100, 900}), 5);
}

TEST(ReplicaSums, BeginWithTheLastBackwardIfTheyMay) {
  const Replicas two{2, {0, 100}, 50};
  EXPECT_DOUBLE_EQ(seconds_after(two, {100, 0}), 0.5) << "the last bucket is left";
  EXPECT_NEAR(seconds_after(two, {20, 0}), 0.2, 1e-12) << "which may be all there is";
  EXPECT_DOUBLE_EQ(seconds_after(two, {400, 0}), 1) << "4 seconds from 7 on";
  EXPECT_DOUBLE_EQ(seconds_after(two, {0, 800}), 3);
}

TEST(ReplicaSums, ForOwnersBeginWithTheLastBackwardToo) {
  Replicas two{2, {0, 50}, 50};
  two.all_get_sums = false;  // 100 bytes a second
  EXPECT_DOUBLE_EQ(seconds_after(two, {100, 0}), 0.5) << "the last bucket is left";
  EXPECT_DOUBLE_EQ(seconds_after(two, {400, 0}), 1) << "4 seconds from 7 on";
}

/// Two modules of 400 bytes each, on two stages.
Judgement judged(const Replicas& replicas, int gradient_copies,
                 simulate::CostSource source = simulate::CostSource::kMeasured) {
  TreeBuilder build;
  for (const char* path : {"a", "b"}) build.module(path, 400);
  auto trace = count_trace(build.tree);
  trace.source = source;
  const auto costs = make_cost_tree(build.tree, trace, nothing_fixed(build.tree), {});
  auto machine = simulate::ideal_machine(2);
  machine.replicas = replicas;
  const auto schedule = schedule::make_schedule("simple", {});
  const StepJudge judge(
      build.tree, trace, costs, machine,
      {.microbatches = 8, .schedule = schedule.get(), .gradient_copies = gradient_copies});
  std::vector<int> stages(costs.nodes.size(), 0);
  stages[costs.node_of_module[build.tree.find("b")]] = 1;
  auto judgement = judge.judge(stages, 8);
  EXPECT_NEAR(judge.judge(stages, 4).replica_sums, judgement.replica_sums, 1e-12)
      << "four are extrapolated";
  return judgement;
}

/// Stage 0 ends the step: its own gradients follow.
TEST(ReplicaSums, CountWherePlacementsAreJudged) {
  const auto alone = judged({}, 1);
  const Replicas two{2, {1e-3, 1e6}};
  const auto summed = judged(two, 1);
  EXPECT_NEAR(summed.replica_sums, two.seconds_for(400), 1e-12);
  EXPECT_EQ(summed.step.seconds, alone.step.seconds) << "which is that of the pipeline";
  EXPECT_GT(summed.value(), alone.value());
  EXPECT_NEAR(judged(two, 2).replica_sums, two.seconds_for(400), 1e-12) << "one copy travels";
  EXPECT_NEAR(judged({2, {1e-3, 1e6}, 100}, 1).replica_sums, two.seconds_for(100), 1e-12)
      << "the last bucket";
}

/// A little slower than the paper's placement, but its gradients are there much sooner.
TEST(ReplicaSums, MayMakeASlowerStepTheBetterOne) {
  TreeBuilder build;
  for (const char* path : {"a", "b"}) build.module(path, 40'000'000);
  for (const char* path : {"c", "d"}) build.module(path, 400);
  build.tree.nodes[0].sequential = true;
  PartitionOptions options;
  options.pp_size = 2;
  options.microbatches = 4;
  options.active_microbatches = 6;
  options.memory_weight = 0;
  options.trace = count_trace(build.tree);
  options.trace.source = simulate::CostSource::kEstimated;
  for (auto& call : options.trace.calls) call.after.seconds = call.module == 0 ? 0 : 1e-3;
  options.machine.handling = 4e-4;  // so that few requests are best
  const auto stage_of = [&](const PartitionPlan& plan, const char* path) {
    return plan.rows()[static_cast<std::size_t>(build.tree.find(path))].pp_rank;
  };
  const auto alone = make_plan(build.tree, options);
  EXPECT_EQ(stage_of(alone, "a"), stage_of(alone, "b")) << "neighbours";
  options.machine.replicas = {2, {1e-5, 4e9}};
  const auto replicated = make_plan(build.tree, options);
  EXPECT_NE(stage_of(replicated, "a"), stage_of(replicated, "b")) << "10 ms of sums instead of 20";
  EXPECT_GT(replicated.summary()->chosen.step_seconds, alone.summary()->chosen.step_seconds);
}

TEST(ReplicaSums, AreNothingBesideCounts) {
  EXPECT_EQ(judged({2, {1e-3, 1e6}}, 1, simulate::CostSource::kCounts).replica_sums, 0);
}

}  // namespace replica_sums_test
}  // namespace smp::partitioning
