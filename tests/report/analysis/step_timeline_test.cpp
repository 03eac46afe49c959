// What the parts of a step are called, and how long it is.
#include "report/analysis/step_timeline.h"

#include <gtest/gtest.h>

#include <tuple>

namespace smp::report {
namespace {

using schedule::Phase;

/// Rank 0 from 10 to 20, rank 1 from 12 to 19 with a span that ends at 25; before it, from 4.
StepTimeline uneven_ranks() {
  StepTimeline timeline;
  timeline.ranks.resize(2);
  timeline.ranks[0].step = 12;
  timeline.ranks[0].start = 10;
  timeline.ranks[0].end = 20;
  timeline.ranks[1].start = 12;
  timeline.ranks[1].end = 19;
  timeline.ranks[1].spans = {{14, 25, 11, 0, 1, Phase::kForward}};
  timeline.ranks[1].between = {{4, 6, 2, -1, -1, Phase::kHost}};
  timeline.module_paths = {"", "encoder"};
  return timeline;
}

TEST(StepTimeline, LastsFromTheFirstStartToTheLastEndOfASpan) {
  const auto timeline = uneven_ranks();
  EXPECT_EQ(whole_step(timeline).start, 10);
  EXPECT_EQ(whole_step(timeline).end, 25);
  EXPECT_EQ(with_time_before(timeline).start, 4);
  EXPECT_EQ(with_time_before(timeline).length(), 21);
  EXPECT_EQ(whole_step({}).length(), 0);
}

TEST(StepTimeline, NamesModules) {
  const auto timeline = uneven_ranks();
  EXPECT_EQ(module_name(timeline, -1), "the step body");
  EXPECT_EQ(module_name(timeline, 0), "the model");
  EXPECT_EQ(module_name(timeline, 1), "encoder");
  EXPECT_EQ(module_name(timeline, 2), "module 2") << "of a file that names fewer";
}

TEST(StepTimeline, NamesTheStep) {
  auto timeline = uneven_ranks();
  EXPECT_EQ(step_name(timeline), "Step 12");
  timeline.unfinished = true;
  EXPECT_EQ(step_name(timeline), "Step 12, in which the run ended");
  timeline.simulated = true;
  EXPECT_EQ(step_name(timeline), "Simulated step");
}

TEST(StepTimeline, NamesPhasesAndWorkBetweenSteps) {
  const std::tuple<Phase, const char*, const char*> all[] = {
      {Phase::kForward, "forward", ""},
      {Phase::kBackward, "backward", ""},
      {Phase::kWeightGradient, "weight gradients", ""},
      {Phase::kOptimizer, "optimizer", "optimizer.step()"},
      {Phase::kHost, "host", "the program between steps"},
      {Phase::kOther, "smp", "smp between steps"}};
  for (const auto& [phase, name, between] : all) {
    EXPECT_STREQ(phase_name(phase), name);
    EXPECT_STREQ(name_between_steps(phase), between);
  }
}

}  // namespace
}  // namespace smp::report
