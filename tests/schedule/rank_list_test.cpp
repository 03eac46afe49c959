// schedule/rank_list_test.cpp: places in a list, and what has been overtaken.
#include "schedule/rank_list.h"

#include <gmock/gmock.h>

namespace smp::schedule {
namespace {

using testing::ElementsAre;
using enum ActionKind;

RankList example() {  // F0 F1 I0 W0 B1
  return RankList(
      {{kForward, 0}, {kForward, 1}, {kInputGradient, 0}, {kWeightGradient, 0}, {kBackward, 1}}, 2);
}

TEST(RankList, WorkHasThePlaceOfItsAction) {
  const auto list = example();
  EXPECT_EQ(list.place(Phase::kForward, 1), 1);
  EXPECT_EQ(list.place(Phase::kBackward, 0), 2) << "I is a backward";
  EXPECT_EQ(list.place(Phase::kWeightGradient, 0), 3);
  EXPECT_EQ(list.place(Phase::kBackward, 1), 4);
}

TEST(RankList, WhatIsNotInItStandsBehindAll) {
  const auto list = example();
  EXPECT_TRUE(list.has(Phase::kWeightGradient, 0));
  EXPECT_FALSE(list.has(Phase::kWeightGradient, 1));
  EXPECT_EQ(list.place(Phase::kWeightGradient, 1), 5);
}

TEST(RankList, AForwardWaitsForTheEndsBeforeIt) {
  const RankList list({{kForward, 1},
                       {kInputGradient, 1},
                       {kForward, 0},
                       {kWeightGradient, 1},
                       {kForward, 2},
                       {kBackward, 0},
                       {kBackward, 2}},
                      3);
  EXPECT_THAT(list.ends(), ElementsAre(1, 0, 2));
  EXPECT_EQ(list.ends_before(0), 0) << "the I of 1 does not end it";
  EXPECT_EQ(list.ends_before(2), 1);
}

TEST(ListProgress, WorkOvertakesWhatStandsBeforeItAndHasNotBegun) {
  const auto list = example();
  ListProgress progress(&list, 2);
  EXPECT_FALSE(progress.overtakes(Phase::kForward, 0)) << "it is next";
  EXPECT_TRUE(progress.overtakes(Phase::kForward, 1));
  progress.begin(Phase::kForward, 1);
  EXPECT_TRUE(progress.overtakes(Phase::kBackward, 0)) << "F0 has not begun";
  progress.begin(Phase::kForward, 0);
  EXPECT_FALSE(progress.overtakes(Phase::kBackward, 0));
  EXPECT_TRUE(progress.overtakes(Phase::kBackward, 1));
  progress.begin(Phase::kForward, 0);
  EXPECT_TRUE(progress.overtakes(Phase::kBackward, 1)) << "said again";
}

TEST(ListProgress, WhatHasEndedIsNotAwaited) {
  const auto list = example();
  ListProgress progress(&list, 2);
  progress.begin(Phase::kForward, 1);
  progress.end(0);  // without a W
  EXPECT_FALSE(progress.overtakes(Phase::kBackward, 1));
}

TEST(ListProgress, MicrobatchesThatTheStepDoesNotHaveAreNotAwaited) {
  const RankList list({{kForward, 1}, {kForward, 0}, {kBackward, 1}, {kBackward, 0}}, 2);
  ListProgress progress(&list, 1);
  EXPECT_FALSE(progress.overtakes(Phase::kForward, 0));
  progress.begin(Phase::kForward, 0);
  EXPECT_FALSE(progress.overtakes(Phase::kBackward, 0));
}

TEST(ListProgress, WithoutAListNothingIsOvertaken) {
  ListProgress progress(nullptr, 4);
  progress.begin(Phase::kForward, 3);
  progress.end(2);
  EXPECT_FALSE(progress.overtakes(Phase::kBackward, 3));
}

}  // namespace
}  // namespace smp::schedule
