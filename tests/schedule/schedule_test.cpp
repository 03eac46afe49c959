// schedule/schedule_test.cpp: the answers of the two schedules, and a step played with them.
#include "schedule/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "smp/error.h"

namespace smp::schedule {
namespace {

TEST(Simple, StartsEverythingAndHoldsBackwardUntilAllForwardsAreDone) {
  const auto schedule = make_simple();
  Progress progress{8, 7, 7, 0};
  EXPECT_TRUE(schedule->may_start(progress));
  EXPECT_FALSE(schedule->may_begin_backward(progress));
  progress.forward_done = 8;
  EXPECT_TRUE(schedule->may_begin_backward(progress));
}

TEST(Simple, PrefersForwardsThenLowerMicrobatches) {
  const auto schedule = make_simple();
  const Progress progress{4, 4, 0, 0};
  const auto forward3 = schedule->priority(Phase::kForward, 3, progress);
  const auto backward0 = schedule->priority(Phase::kBackward, 0, progress);
  EXPECT_LT(forward3, backward0);
  EXPECT_LT(backward0, schedule->priority(Phase::kBackward, 1, progress));
}

TEST(Interleaved, PrefersBackwardsThenLowerMicrobatches) {
  const auto schedule = make_interleaved(2);
  const Progress progress{4, 4, 0, 0};
  EXPECT_LT(schedule->priority(Phase::kBackward, 3, progress),
            schedule->priority(Phase::kForward, 0, progress));
  EXPECT_LT(schedule->priority(Phase::kForward, 0, progress),
            schedule->priority(Phase::kForward, 1, progress));
}

TEST(Interleaved, NeverHasMoreInFlightThanItsCap) {
  for (int cap = 1; cap <= 5; ++cap) {
    const auto schedule = make_interleaved(cap);
    Progress progress{12, 0, 0, 0};
    int most = 0;
    while (progress.finished < progress.microbatches) {
      while (progress.started < progress.microbatches && schedule->may_start(progress)) {
        ++progress.started;
      }
      most = std::max(most, progress.in_flight());
      ++progress.finished;
    }
    EXPECT_EQ(most, cap);
  }
}

TEST(Schedules, AreMadeByName) {
  EXPECT_STREQ(make_schedule("simple", 1)->name(), "simple");
  EXPECT_STREQ(make_schedule("interleaved", 4)->name(), "interleaved");
  EXPECT_THROW((void)make_schedule("gpipe", 4), UsageError);
  EXPECT_THROW((void)make_schedule("interleaved", 0), UsageError);
}

}  // namespace
}  // namespace smp::schedule
