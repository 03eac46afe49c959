// The step behind the simulated timeline is the one that the plan promises.
#include "partition/simulated/plan_simulation.h"

#include <gmock/gmock.h>

#include <cmath>

#include "partition/model/count_trace.h"
#include "partition/plan/plan_example.h"
#include "smp/error.h"

namespace smp::partitioning {
namespace {

PartitionOptions options_for(const ModuleTree& tree, int pp_size) {
  PartitionOptions options;
  options.pp_size = pp_size;
  options.microbatches = 4;
  options.active_microbatches = 2 * pp_size + 2;
  options.trace = count_trace(tree);
  return options;
}

TEST(PlanSimulation, TakesAsLongAsThePlanSays) {
  const ModuleTree tree = encoder_decoder(4, 4000, 1000, true);
  const PartitionOptions options = options_for(tree, 2);
  const PartitionPlan plan = make_plan(tree, options);
  const simulate::SimulatedStep step = simulate_plan(tree, options, plan);
  ASSERT_TRUE(plan.summary());
  EXPECT_NEAR(step.seconds, plan.summary()->chosen.step_seconds, 1e-9);
  EXPECT_NEAR(step.bubble, plan.summary()->chosen.bubble, 1e-9);
}

/// With state in order every result goes through the caller, in the plan and in its timeline.
TEST(PlanSimulation, TakesAsLongAsThePlanSaysIfAModuleKeepsOrder) {
  const ModuleTree free = encoder_decoder(4, 4000, 1000, true);
  ModuleTree tree = free;
  tree.nodes.back().state_use = StateUse::kOrdered;
  PartitionOptions options = options_for(tree, 3);
  options.machine.latency = 1e-3;
  const PartitionPlan plan = make_plan(tree, options);
  ASSERT_TRUE(plan.summary());
  const double seconds = simulate_plan(tree, options, plan).seconds;
  EXPECT_NEAR(seconds, plan.summary()->chosen.step_seconds, 1e-9);
  EXPECT_GT(seconds, simulate_plan(free, options, plan).seconds);
}

TEST(PlanSimulation, ShowsWhatEveryStageDoes) {
  const ModuleTree tree = encoder_decoder(4, 4000, 1000, true);
  const PartitionOptions options = options_for(tree, 3);
  const simulate::SimulatedStep step = simulate_plan(tree, options, make_plan(tree, options));
  ASSERT_EQ(step.timeline.size(), 3u);
  for (const schedule::StepTrace& stage : step.timeline) EXPECT_FALSE(stage.spans.empty());
}

TEST(PlanSimulation, ShowsFewerMicrobatchesOfAHugeStep) {
  const ModuleTree tree = encoder_decoder(4, 4000, 1000, true);
  PartitionOptions options = options_for(tree, 2);
  const PartitionPlan plan = make_plan(tree, options);
  options.microbatches = 1'000'000;
  int last = 0;
  for (const schedule::StepTrace& stage : simulate_plan(tree, options, plan).timeline) {
    for (const schedule::Span& span : stage.spans) last = std::max(last, span.microbatch);
  }
  EXPECT_LT(last, 10'000);
}

/// In the same schedule, with and without what is computed again.
TEST(PlanSimulation, TellsWhatIsLiveOverThePlannedStep) {
  const ModuleTree tree = encoder_decoder(4, 4000, 1000, true);
  PartitionOptions options = options_for(tree, 2);
  for (auto& call : options.trace.calls) {
    call.after.activation_bytes = 1000;
    call.input_bytes = 10;
  }
  const PartitionPlan plan = make_plan(tree, options);
  auto step = planned_step(tree, options);
  const auto kept = simulate_memory(plan, step);
  ASSERT_EQ(kept.live.size(), 2u);
  EXPECT_TRUE(kept.held.empty());
  EXPECT_EQ(kept.length, std::llround(simulate_plan(tree, options, plan).seconds * base::kSecond));
  for (std::size_t m = 1; m < tree.nodes.size(); ++m) {
    step.trace.recomputed.push_back({static_cast<int>(m)});
  }
  const auto again = simulate_memory(plan, step);
  EXPECT_EQ(again.held, kept.live);
  EXPECT_GT(again.length, kept.length);
  ASSERT_EQ(again.live.size(), 2u);
  EXPECT_NE(again.live, again.held);
}

TEST(PlanSimulation, NamesAPlanOfOtherStages) {
  const ModuleTree tree = encoder_decoder(4, 4000, 1000, true);
  const PartitionOptions options = options_for(tree, 2);
  auto step = planned_step(tree, options);
  step.machine.stages = 3;
  EXPECT_THROW(simulate_memory(make_plan(tree, options), step), UsageError);
}

}  // namespace
}  // namespace smp::partitioning
