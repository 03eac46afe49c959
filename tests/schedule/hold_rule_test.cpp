// schedule/hold_rule_test.cpp: how long a wait may be, and that waits in vain are limited.
#include "schedule/hold_rule.h"

#include <gtest/gtest.h>

namespace smp::schedule {
namespace {

using base::kMillisecond;

TEST(HoldRule, NothingIsHeldBeforeItIsKnownHowLongItTakes) {
  HoldRule rule;
  EXPECT_EQ(rule.longest(Phase::kForward, 1), 0);
  rule.computed(Phase::kBackward, 10 * kMillisecond);
  EXPECT_EQ(rule.longest(Phase::kForward, 1), 0) << "a backward says nothing of it";
}

TEST(HoldRule, AWaitIsAMultipleOfTheUsualTime) {
  HoldRule rule;
  rule.computed(Phase::kForward, 10 * kMillisecond);
  rule.computed(Phase::kBackward, 30 * kMillisecond);
  EXPECT_EQ(rule.longest(Phase::kForward, 0.5), 5 * kMillisecond);
  EXPECT_EQ(rule.longest(Phase::kBackward, 2), 60 * kMillisecond);
  EXPECT_EQ(rule.longest(Phase::kBackward, 0), 0);
}

TEST(HoldRule, WhatIsUsualFollowsTheLatestTimes) {
  HoldRule rule;
  rule.computed(Phase::kForward, 10 * kMillisecond);
  rule.computed(Phase::kForward, 20 * kMillisecond);
  EXPECT_EQ(rule.longest(Phase::kForward, 1), 11 * kMillisecond);
  for (int i = 0; i < 100; ++i) rule.computed(Phase::kForward, 20 * kMillisecond);
  EXPECT_NEAR(static_cast<double>(rule.longest(Phase::kForward, 1)), 20.0 * kMillisecond, 1e3);
}

TEST(HoldRule, WaitsInVainTakeNoMoreThanAShareOfTheTimeComputed) {
  HoldRule rule;
  base::Nanoseconds computed = 0, in_vain = 0;
  for (int i = 0; i < 1000; ++i) {
    rule.computed(Phase::kForward, 10 * kMillisecond);
    computed += 10 * kMillisecond;
    const auto longest = rule.longest(Phase::kForward, 2);
    rule.waited_in_vain(longest);
    in_vain += longest;
  }
  EXPECT_GT(in_vain, computed / 60);
  EXPECT_LT(in_vain, computed / 50 + 20 * kMillisecond);
}

}  // namespace
}  // namespace smp::schedule
