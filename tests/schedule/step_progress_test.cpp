// schedule/step_progress_test.cpp: who may start, who waits at the gate, and when a step is over.
#include "schedule/step_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "smp/error.h"

namespace smp::schedule {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<int> start_all(StepProgress& step) {
  std::vector<int> started;
  while (const auto microbatch = step.start_next()) started.push_back(*microbatch);
  return started;
}

TEST(StepProgress, StartsBodiesInOrderAsTheScheduleAllows) {
  const auto schedule = make_interleaved(2);
  StepProgress step(*schedule, 4);
  EXPECT_THAT(start_all(step), ElementsAre(0, 1));
  step.body_finished(1);
  EXPECT_THAT(start_all(step), ElementsAre(2));
  step.body_finished(0);
  step.body_finished(2);
  EXPECT_THAT(start_all(step), ElementsAre(3));
  EXPECT_FALSE(step.all_finished());
  step.body_finished(3);
  EXPECT_TRUE(step.all_finished());
  EXPECT_THAT(start_all(step), IsEmpty());
}

TEST(StepProgress, SimpleOpensTheGateWhenTheLastForwardIsFinished) {
  const auto schedule = make_simple();
  StepProgress step(*schedule, 3);
  ASSERT_THAT(start_all(step), ElementsAre(0, 1, 2));
  step.forward_finished(1);
  EXPECT_FALSE(step.may_begin_backward(1));
  step.forward_finished(0);
  EXPECT_FALSE(step.may_begin_backward(0));
  EXPECT_THAT(step.open_gate(), IsEmpty());
  step.forward_finished(2);
  EXPECT_TRUE(step.may_begin_backward(2));
  EXPECT_THAT(step.open_gate(), ElementsAre(1, 0)) << "in the order they came";
  EXPECT_THAT(step.open_gate(), IsEmpty()) << "forgotten once told";
  EXPECT_TRUE(step.may_begin_backward(1));
}

TEST(StepProgress, ABodyThatNeverCallsBackwardHoldsNobodyBack) {
  const auto schedule = make_simple();
  StepProgress step(*schedule, 2);
  ASSERT_THAT(start_all(step), ElementsAre(0, 1));
  step.forward_finished(0);
  EXPECT_FALSE(step.may_begin_backward(0));
  step.body_finished(1);
  EXPECT_EQ(step.progress().forward_done, 2);
  EXPECT_THAT(step.open_gate(), ElementsAre(0));
}

TEST(StepProgress, CountsAForwardOnceAndABodyOnceAtTheGate) {
  const auto schedule = make_simple();
  StepProgress step(*schedule, 3);
  ASSERT_THAT(start_all(step), ElementsAre(0, 1, 2));
  step.forward_finished(0);
  step.forward_finished(0);
  EXPECT_EQ(step.progress().forward_done, 1);
  EXPECT_FALSE(step.may_begin_backward(0));
  EXPECT_FALSE(step.may_begin_backward(0));
  step.body_finished(1);
  step.body_finished(2);
  EXPECT_THAT(step.open_gate(), ElementsAre(0));
  step.body_finished(0);
  EXPECT_EQ(step.progress().forward_done, 3);
  EXPECT_TRUE(step.all_finished());
}

TEST(StepProgress, InterleavedNeverHoldsABackwardBack) {
  const auto schedule = make_interleaved(2);
  StepProgress step(*schedule, 5);
  ASSERT_THAT(start_all(step), ElementsAre(0, 1));
  step.forward_finished(1);
  EXPECT_TRUE(step.may_begin_backward(1));
  EXPECT_THAT(step.open_gate(), IsEmpty());
}

TEST(StepProgress, GivesTheSchedulesPriorities) {
  const auto schedule = make_simple();
  const StepProgress step(*schedule, 4);
  const Progress progress{4, 0, 0, 0};
  EXPECT_EQ(step.microbatches(), 4);
  for (int microbatch = 0; microbatch < 4; ++microbatch) {
    for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
      EXPECT_EQ(step.priority(phase, microbatch), schedule->priority(phase, microbatch, progress));
    }
  }
}

TEST(StepProgress, AStepWithoutMicrobatchesIsOver) {
  const auto schedule = make_simple();
  StepProgress step(*schedule, 0);
  EXPECT_TRUE(step.all_finished());
  EXPECT_FALSE(step.start_next().has_value());
}

TEST(StepProgress, RefusesWhatCannotBe) {
  const auto schedule = make_interleaved(1);
  StepProgress step(*schedule, 2);
  EXPECT_THROW(step.forward_finished(0), InternalError);
  ASSERT_THAT(start_all(step), ElementsAre(0));
  EXPECT_THROW((void)step.may_begin_backward(1), InternalError);
  step.body_finished(0);
  EXPECT_THROW(step.body_finished(0), InternalError);
}

}  // namespace
}  // namespace smp::schedule
