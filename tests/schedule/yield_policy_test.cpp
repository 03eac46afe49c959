// schedule/yield_policy_test.cpp: when a turn is due, how long it may wait, and the order of keys.
#include "schedule/yield_policy.h"

#include <gtest/gtest.h>

#include "schedule/schedule.h"

namespace smp::schedule {
namespace {

using base::kMicrosecond;
using base::kMillisecond;
using base::kSecond;

TEST(Patience, IsAFiftiethOfTheTimeSinceTheLastTurnWithinBounds) {
  EXPECT_EQ(patience(0), 0);
  EXPECT_EQ(patience(999 * kMicrosecond), 0) << "shorter than it is worth";
  EXPECT_EQ(patience(kMillisecond), 20 * kMicrosecond);
  EXPECT_EQ(patience(5 * kMillisecond), 100 * kMicrosecond);
  EXPECT_EQ(patience(kSecond), 500 * kMicrosecond);
}

TEST(YieldPolicy, ATurnIsDueAfterAnAnswer) {
  YieldPolicy policy;
  policy.end(kSecond);
  EXPECT_TRUE(policy.begin(true, kSecond, false, true).due);
  EXPECT_TRUE(policy.begin(true, kSecond, false, false).due);
  EXPECT_FALSE(policy.begin(false, kSecond, true, true).due);
}

TEST(YieldPolicy, ATurnIsDueAfterLongWorkIfAnswersAreAwaited) {
  YieldPolicy policy;
  policy.end(kSecond);
  EXPECT_FALSE(policy.begin(false, kSecond + kLongWork, true, true).due);
  EXPECT_TRUE(policy.begin(false, kSecond + kLongWork + 1, true, true).due);
  EXPECT_FALSE(policy.begin(false, kSecond + kLongWork + 1, false, true).due);
  policy.end(kSecond + kLongWork + 1);
  EXPECT_FALSE(policy.begin(false, kSecond + kLongWork + 2, true, true).due);
}

TEST(YieldPolicy, SimulatedTimeOfTestsDecidesNothing) {
  YieldPolicy policy;
  policy.end(0);
  EXPECT_FALSE(policy.begin(false, kSecond, true, false).due);
  EXPECT_EQ(policy.begin(true, kSecond, true, false).patience, 0);
}

TEST(YieldPolicy, WaitsOnlyWhileAnswersAreAwaited) {
  YieldPolicy policy;
  policy.end(kSecond);
  const auto now = kSecond + 10 * kMillisecond;
  EXPECT_EQ(policy.begin(true, now, true, true).patience, 200 * kMicrosecond);
  EXPECT_EQ(policy.begin(false, now, true, true).patience, 200 * kMicrosecond);
  EXPECT_EQ(policy.begin(true, now, false, true).patience, 0);
}

/// Patience of one turn after another, 10 ms apart.
class Turns {
 public:
  base::Nanoseconds next(YieldPolicy::Waited outcome) {
    now_ += 10 * kMillisecond;
    const auto turn = policy_.begin(true, now_, true, true);
    EXPECT_TRUE(turn.due);
    policy_.end(now_, turn.patience > 0 ? outcome : YieldPolicy::Waited::kNot);
    return turn.patience;
  }
  /// Of the next `count` turns: those that were patient, in vain.
  int patient_of(int count) {
    int patient = 0;
    for (int i = 0; i < count; ++i) patient += next(YieldPolicy::Waited::kInVain) > 0 ? 1 : 0;
    return patient;
  }

 private:
  YieldPolicy policy_;
  base::Nanoseconds now_ = kSecond;
};

TEST(YieldPolicy, PatienceThatNeverPaysOffBecomesRare) {
  Turns turns;
  EXPECT_EQ(turns.patient_of(kWaitsInVain), kWaitsInVain);
  EXPECT_EQ(turns.patient_of(kTurnsToProbe - 1), 0);
  EXPECT_EQ(turns.patient_of(10 * kTurnsToProbe), 10);
}

TEST(YieldPolicy, PatienceThatPaysOffOnceComesBack) {
  Turns turns;
  turns.patient_of(kWaitsInVain + kTurnsToProbe - 1);
  EXPECT_GT(turns.next(YieldPolicy::Waited::kPaidOff), 0);
  EXPECT_EQ(turns.patient_of(kWaitsInVain), kWaitsInVain);
  EXPECT_EQ(turns.patient_of(kTurnsToProbe - 1), 0);
}

TEST(YieldPolicy, AnImpatientOneStillGivesWay) {
  YieldPolicy policy(false);
  const auto turn = policy.begin(false, kSecond, true, true);
  EXPECT_TRUE(turn.due);
  EXPECT_EQ(turn.patience, 0);
}

TEST(PassingOn, GoesBeforeEveryPriorityOfAScheduleAndKeepsTheirOrder) {
  constexpr std::int64_t kLargest = 2LL * 2'147'483'647;  // of 2^31 - 1 microbatches
  EXPECT_LT(passing_on(kLargest), 0);
  EXPECT_LT(passing_on(0), passing_on(1));
  EXPECT_LT(passing_on(1), passing_on(kLargest));
  for (const std::int64_t priority : {std::int64_t{0}, std::int64_t{7}, kLargest}) {
    EXPECT_FALSE(is_passing_on(priority));
    EXPECT_TRUE(is_passing_on(passing_on(priority)));
    EXPECT_EQ(passing_on(passing_on(priority)), passing_on(priority));
    EXPECT_EQ(without_passing_on(passing_on(priority)), priority);
    EXPECT_EQ(without_passing_on(priority), priority);
  }
}

}  // namespace
}  // namespace smp::schedule
