// Which steps may do without control messages.
#include "server/recorded_steps.h"

#include <gtest/gtest.h>

namespace smp::server {
namespace {

void end(RecordedSteps& steps, int times) {
  for (int i = 0; i < times; ++i) steps.ended(/*news=*/false, 10);
}

TEST(RecordedSteps, FollowFiveThatEndedAlike) {
  RecordedSteps steps(true);
  for (int i = 0; i < RecordedSteps::kSteps; ++i) {
    EXPECT_FALSE(steps.may_replay()) << i;
    steps.ended(false, 10);
  }
  EXPECT_TRUE(steps.may_replay());
}

TEST(RecordedSteps, AreCountedAnewAfterNewsAndFailures) {
  RecordedSteps steps(true);
  end(steps, 4);
  steps.ended(/*news=*/true, 10);
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
  EXPECT_TRUE(steps.ended(false, 20));
  EXPECT_FALSE(steps.ended(false, 30));
  EXPECT_FALSE(steps.ended(false, 20));
  EXPECT_TRUE(steps.ended(false, 19));
  EXPECT_TRUE(steps.ended(/*news=*/true, 25)) << "those before may have done something else";
  EXPECT_FALSE(steps.ended(false, 25));
  steps.forget();
  EXPECT_TRUE(steps.ended(false, 100));
  EXPECT_FALSE(RecordedSteps(false).ended(false, 1));
}

TEST(RecordedSteps, AreNoneUnlessWanted) {
  RecordedSteps steps(false);
  end(steps, 100);
  EXPECT_FALSE(steps.may_replay());
}

}  // namespace
}  // namespace smp::server
