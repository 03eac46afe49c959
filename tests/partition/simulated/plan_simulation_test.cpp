// The step behind the simulated timeline is the one that the plan promises.
#include "partition/simulated/plan_simulation.h"

#include <gmock/gmock.h>

#include "partition/model/count_trace.h"
#include "partition/plan/plan_example.h"

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

}  // namespace
}  // namespace smp::partitioning
