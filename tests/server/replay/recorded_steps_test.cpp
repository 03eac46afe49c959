// Which steps may do without control messages.
#include "server/replay/recorded_steps.h"

#include <gtest/gtest.h>

namespace smp::server {
namespace {

constexpr auto kTraining = RecordedSteps::Kind::kTraining,
               kEvaluation = RecordedSteps::Kind::kForward, kRest = RecordedSteps::Kind::kOther;

void end(RecordedSteps& steps, int times) {
  for (int i = 0; i < times; ++i) steps.ended(/*news=*/false, kTraining, 4, 10);
}

TEST(RecordedSteps, FollowFiveThatEndedAlike) {
  RecordedSteps steps(true);
  for (int i = 0; i < RecordedSteps::kSteps; ++i) {
    EXPECT_FALSE(steps.may_replay()) << i;
    steps.ended(false, kTraining, 4, 10);
  }
  EXPECT_TRUE(steps.may_replay());
}

TEST(RecordedSteps, AreCountedAnewAfterNewsAndFailures) {
  RecordedSteps steps(true);
  end(steps, 4);
  steps.ended(/*news=*/true, kTraining, 4, 10);
  end(steps, 4);
  EXPECT_FALSE(steps.may_replay());
  end(steps, 1);
  EXPECT_TRUE(steps.may_replay());
  steps.forget();
  EXPECT_FALSE(steps.may_replay());
  end(steps, 5);
  EXPECT_TRUE(steps.may_replay());
}

TEST(RecordedSteps, KeepToTheOrderOfTheFastest) {
  RecordedSteps steps(true);
  EXPECT_TRUE(steps.ended(false, kTraining, 4, 20));
  EXPECT_FALSE(steps.ended(false, kTraining, 4, 30));
  EXPECT_FALSE(steps.ended(false, kTraining, 4, 20));
  EXPECT_TRUE(steps.ended(false, kTraining, 4, 19));
  EXPECT_TRUE(steps.ended(/*news=*/true, kTraining, 4, 25))
      << "those before may have done something else";
  EXPECT_FALSE(steps.ended(false, kTraining, 4, 25));
  steps.forget();
  EXPECT_TRUE(steps.ended(false, kTraining, 4, 100));
  EXPECT_FALSE(RecordedSteps(false).ended(false, kTraining, 4, 1));
}

TEST(RecordedSteps, ThatEvaluateSetNoOrderForThoseThatTrain) {
  RecordedSteps steps(true);
  EXPECT_TRUE(steps.ended(false, kEvaluation, 4, 10)) << "nothing better is known";
  EXPECT_TRUE(steps.ended(false, kTraining, 4, 30));
  EXPECT_FALSE(steps.ended(false, kEvaluation, 4, 9));
  EXPECT_FALSE(steps.ended(false, kTraining, 4, 30));
  EXPECT_TRUE(steps.ended(false, kTraining, 4, 29));
}

TEST(RecordedSteps, OfARestOfABatchSetNoOrder) {
  RecordedSteps steps(true);
  EXPECT_FALSE(steps.ended(false, kRest, 4, 5));
  EXPECT_TRUE(steps.ended(false, kTraining, 4, 30));
  EXPECT_FALSE(steps.ended(false, kRest, 4, 5));
  EXPECT_TRUE(steps.ended(false, kTraining, 4, 29));
}

TEST(RecordedSteps, OfAnotherNumberOfMicrobatchesSetAnOrderOfTheirOwn) {
  RecordedSteps steps(true);
  EXPECT_TRUE(steps.ended(false, kTraining, 2, 5));
  EXPECT_TRUE(steps.ended(false, kTraining, 4, 30));
  EXPECT_FALSE(steps.ended(false, kTraining, 2, 6));
  EXPECT_TRUE(steps.ended(false, kTraining, 2, 4));
  EXPECT_TRUE(steps.ended(false, kTraining, 4, 29));
}

TEST(RecordedSteps, AreNoneUnlessWanted) {
  RecordedSteps steps(false);
  end(steps, 100);
  EXPECT_FALSE(steps.may_replay());
}

}  // namespace
}  // namespace smp::server
