// schedule/list_schedule_test.cpp: lists as windows and priorities, and that no model can stop
// them.
#include "schedule/list_schedule.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "schedule/list_check.h"
#include "schedule/list_generators.h"
#include "schedule/step_progress.h"
#include "smp/error.h"

namespace smp::schedule {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<int> entering(const StepProgress& step) {
  std::vector<int> may;
  for (int i = 0; i < step.microbatches(); ++i) {
    if (step.may_enter(i)) may.push_back(i);
  }
  return may;
}

TEST(ListSchedule, WhatStandsEarlierInTheListRunsFirst) {
  const auto schedule = make_list_schedule("1f1b", one_forward_one_backward_lists(3, 4));
  // rank 1: F0 F1 B0 F2 B1 F3 B2 B3
  const StepProgress step(*schedule, 4, 1);
  EXPECT_LT(step.priority(Phase::kForward, 1), step.priority(Phase::kBackward, 0));
  EXPECT_LT(step.priority(Phase::kBackward, 0), step.priority(Phase::kForward, 2));
  EXPECT_LT(step.priority(Phase::kForward, 3), step.priority(Phase::kBackward, 2));
  // rank 2: F0 B0 F1 B1 ...
  const StepProgress last(*schedule, 4, 2);
  EXPECT_LT(last.priority(Phase::kBackward, 0), last.priority(Phase::kForward, 1));
}

TEST(ListSchedule, WeightGradientsHaveAPlaceOfTheirOwn) {
  const auto schedule = make_list_schedule("zero_bubble", zero_bubble_lists(3, 4));
  // rank 2: F0 I0 F1 I1 F2 I2 W0 F3 ...
  const StepProgress step(*schedule, 4, 2);
  EXPECT_LT(step.priority(Phase::kBackward, 2), step.priority(Phase::kWeightGradient, 0));
  EXPECT_LT(step.priority(Phase::kWeightGradient, 0), step.priority(Phase::kForward, 3));
  EXPECT_TRUE(schedule->splits_backward(2, 0));
  const auto mixed =
      ScheduleLists::from_text("smp-schedule 1\nmicrobatches 2\nrank 0: F0 F1 B0 I1 W1\n", "mixed");
  const auto own = make_list_schedule("own", mixed);
  EXPECT_FALSE(own->splits_backward(0, 0));
  EXPECT_TRUE(own->splits_backward(0, 1));
}

TEST(ListSchedule, AForwardEntersWhenTheEndsBeforeItAreDone) {
  const auto schedule = make_list_schedule("1f1b", one_forward_one_backward_lists(3, 6));
  StepProgress step(*schedule, 6, 1);  // rank 1: F0 F1 B0 F2 B1 F3 B2 ...
  EXPECT_THAT(entering(step), ElementsAre(0, 1));
  step.ended_here(1);
  EXPECT_THAT(entering(step), ElementsAre(0, 1)) << "0 stands before F2, and so it must end first";
  step.ended_here(0);
  EXPECT_THAT(entering(step), ElementsAre(0, 1, 2, 3));
  step.ended_here(0);
  EXPECT_THAT(entering(step), ElementsAre(0, 1, 2, 3)) << "said again";
  step.ended_here(2);
  EXPECT_THAT(entering(step), ElementsAre(0, 1, 2, 3, 4));
}

TEST(ListSchedule, EachMicrobatchIsNamedOnceWhenItMayEnter) {
  // Not in the order of microbatches.
  const auto lists = ScheduleLists::from_text(
      "smp-schedule 1\nmicrobatches 4\nrank 0: F0 F1 F2 F3 B0 B1 B2 B3\n"
      "rank 1: F0 F2 B0 F1 F3 B1 B2 B3\n",
      "test");
  const auto schedule = make_list_schedule("own", lists);
  StepProgress step(*schedule, 4, 1);
  const auto named = [&step] {
    std::vector<int> all;
    while (const auto microbatch = step.next_to_enter()) all.push_back(*microbatch);
    return all;
  };
  EXPECT_THAT(named(), ElementsAre(0, 2));
  EXPECT_THAT(named(), IsEmpty());
  step.ended_here(1);
  EXPECT_THAT(named(), IsEmpty()) << "0 must end first";
  step.ended_here(0);
  EXPECT_THAT(named(), ElementsAre(1, 3));
  EXPECT_THAT(named(), IsEmpty());
  const auto simple = make_simple();
  EXPECT_FALSE(StepProgress(*simple, 4, 1).next_to_enter()) << "nothing ever waits";
}

TEST(ListSchedule, AMicrobatchIsKeptUntilItsWeightGradientsAreDone) {
  const auto schedule = make_list_schedule("zero_bubble", zero_bubble_lists(3, 6));
  StepProgress step(*schedule, 6, 2);  // rank 2: F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 F4 ...
  EXPECT_THAT(entering(step), ElementsAre(0, 1, 2));
  step.ended_here(0);
  EXPECT_THAT(entering(step), ElementsAre(0, 1, 2, 3));
}

TEST(ListSchedule, BodiesStartInOrderAsTheFirstRanksWindowAllows) {
  const auto schedule = make_list_schedule("1f1b", one_forward_one_backward_lists(2, 4));
  StepProgress step(*schedule, 4);
  EXPECT_EQ(step.start_next(), 0);
  EXPECT_EQ(step.start_next(), 1);
  EXPECT_EQ(step.start_next(), std::nullopt);
  EXPECT_TRUE(step.may_begin_backward(1)) << "there is no gate";
  step.body_finished(1);
  EXPECT_EQ(step.start_next(), std::nullopt);
  step.body_finished(0);
  EXPECT_EQ(step.start_next(), 2);
  EXPECT_EQ(step.start_next(), 3);
}

TEST(ListSchedule, AStepMayHaveFewerMicrobatchesButNotMore) {
  const auto schedule = make_list_schedule(
      "own", ScheduleLists::from_text("smp-schedule 1\nmicrobatches 3\n"
                                      "rank 0: F2 F1 F0 B1 B0 B2\nrank 1: F1 F0 B1 B0 F2 B2\n",
                                      "own"));
  StepProgress step(*schedule, 1, 1);
  EXPECT_TRUE(step.may_enter(0));
  StepProgress two(*schedule, 3, 1);
  two.ended_here(0);
  EXPECT_FALSE(two.may_enter(2));
  EXPECT_THROW(StepProgress(*schedule, 4, 1), UsageError);
  EXPECT_EQ(schedule->most_alive(0, 3), 3);
  EXPECT_EQ(schedule->most_alive(0, 2), 2);
  EXPECT_EQ(schedule->most_alive(1, 3), 2);
}

TEST(ListSchedule, OtherSchedulesLetEverythingEnter) {
  for (const char* name : {"simple", "interleaved"}) {
    const auto schedule = make_schedule(name, {.active_microbatches = 1});
    const StepProgress step(*schedule, 5, 3);
    EXPECT_THAT(entering(step), ElementsAre(0, 1, 2, 3, 4)) << name;
  }
}

/// Random lists that the checker accepts, and bodies that visit random ranks, again and again, for
/// forwards and for backwards: whatever is ready runs in random order, and still all come to an
/// end.
TEST(ListSchedule, NoModelIsStoppedByWindows) {
  const bool holds = rc::check([] {
    const int ranks = *rc::gen::inRange(1, 5), microbatches = *rc::gen::inRange(1, 7);
    ScheduleLists lists{microbatches, {}};
    for (int rank = 0; rank < ranks; ++rank) {
      // In a random order of forwards; each is followed by ends of lower ones at random.
      auto& actions = lists.ranks.emplace_back();
      std::vector<int> alive;
      for (int i = 0; i < microbatches; ++i) {
        actions.push_back({ActionKind::kForward, i});
        alive.push_back(i);
        while (!alive.empty() && *rc::gen::arbitrary<bool>()) {
          const int end = *rc::gen::inRange(0, static_cast<int>(alive.size()));
          actions.push_back({ActionKind::kBackward, alive[end]});
          alive.erase(alive.begin() + end);
        }
      }
      for (const int i : alive) actions.push_back({ActionKind::kBackward, i});
    }
    const auto schedule = make_list_schedule("random", lists);
    std::vector<StepProgress> progress;
    for (int rank = 0; rank < ranks; ++rank) progress.emplace_back(*schedule, microbatches, rank);
    // By microbatch: the ranks that it visits one after the other; -1: not started.
    std::vector<std::vector<int>> visits(microbatches);
    std::vector<int> at(microbatches, -1);
    std::vector<bool> over(microbatches, false);
    for (auto& own : visits) {
      own = *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, ranks));
    }
    for (bool moved = true; moved;) {
      moved = false;
      while (const auto started = progress[0].start_next()) at[*started] = 0;
      std::vector<int> order(microbatches);
      std::iota(order.begin(), order.end(), 0);
      if (*rc::gen::arbitrary<bool>()) std::reverse(order.begin(), order.end());
      for (const int i : order) {
        if (at[i] < 0 || over[i]) continue;
        if (at[i] < static_cast<int>(visits[i].size())) {
          if (!progress[visits[i][at[i]]].may_enter(i)) continue;
          ++at[i];
        } else {
          over[i] = true;
          progress[0].body_finished(i);
          for (int rank = 1; rank < ranks; ++rank) progress[rank].ended_here(i);
        }
        moved = true;
      }
    }
    RC_ASSERT(progress[0].all_finished());
  });
  EXPECT_TRUE(holds);
}

}  // namespace
}  // namespace smp::schedule
