// Which call may be computed ahead: in the order of backwards, within the credit, and not where a
// forward may come for which others wait.
#include "schedule/ahead/ahead_queue.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "schedule/list_schedule.h"
#include "schedule/schedule_lists.h"

namespace smp::schedule {
namespace {

constexpr std::int64_t kBytes = 100;
constexpr AheadCredit kNoLimit{.one_call = false, .bytes = 1 << 20};

/// Takes what is due until nothing is.
std::vector<AheadPlace> taken(AheadQueue& queue) {
  std::vector<AheadPlace> places;
  while (const auto due = queue.due()) {
    places.push_back(*due);
    queue.take(*due);
  }
  return places;
}

TEST(AheadQueue, GoesFromTheLastCallOfTheFirstMicrobatchOn) {
  AheadQueue queue(kNoLimit, /*last=*/3, /*enough=*/2);
  queue.add({1, -2}, kBytes);
  queue.add({1, -3}, kBytes);
  EXPECT_EQ(queue.due(), std::nullopt) << "of two microbatches one is there";
  queue.add({0, -1}, kBytes);
  queue.add({0, -4}, kBytes);
  EXPECT_EQ(taken(queue), (std::vector<AheadPlace>{{0, -4}, {0, -1}}));
  EXPECT_EQ(queue.held(), 2 * kBytes);
  EXPECT_EQ(queue.ahead(), 2);
}

TEST(AheadQueue, TakesTheNextMicrobatchWhenTheOneBeforeIsInItsBackward) {
  AheadQueue queue(kNoLimit, /*last=*/1, 1);
  queue.add({1, -3}, kBytes);
  queue.add({1, -4}, kBytes);
  EXPECT_EQ(queue.due(), (AheadPlace{1, -4}));
  queue.take({1, -4});
  queue.add({0, -1}, kBytes);
  queue.add({0, -2}, kBytes);
  EXPECT_EQ(taken(queue), (std::vector<AheadPlace>{{0, -2}, {0, -1}})) << "it goes back before";
  queue.began({0, -2});
  EXPECT_EQ(queue.due(), std::nullopt);
  queue.ended({0, -2});
  EXPECT_EQ(queue.due(), std::nullopt);
  queue.began({0, -1});
  EXPECT_EQ(queue.due(), (AheadPlace{1, -3}));
}

TEST(AheadQueue, DoesNotWaitForAMicrobatchThatWasPassedOver) {
  AheadQueue queue(kNoLimit, /*last=*/2, 1);
  for (int turn = 0; turn < 3; ++turn) queue.add({turn, -turn - 1}, kBytes);
  EXPECT_EQ(taken(queue), (std::vector<AheadPlace>{{0, -1}}));
  queue.began({1, -2});
  EXPECT_EQ(queue.due(), (AheadPlace{2, -3}));
}

TEST(AheadQueue, AfterTheLastMicrobatchNothingElseComes) {
  AheadQueue queue(kNoLimit, 3, 4);
  queue.add({2, -1}, kBytes);
  EXPECT_EQ(queue.due(), std::nullopt);
  queue.add({3, -2}, kBytes);
  EXPECT_EQ(queue.due(), (AheadPlace{2, -1}));
}

/// Where it goes back first, others are left.
TEST(AheadQueue, TheLastMicrobatchHasComeThoughItHasEnded) {
  AheadQueue queue(kNoLimit, /*last=*/0, 4);
  queue.add({1, -1}, kBytes);
  queue.add({2, -2}, kBytes);
  EXPECT_EQ(queue.due(), std::nullopt);
  queue.add({0, -3}, kBytes);
  queue.began({0, -3});
  queue.ended({0, -3});
  EXPECT_EQ(queue.due(), (AheadPlace{1, -1}));
}

/// A later call of an earlier one may end after it.
TEST(AheadQueue, TheLastMicrobatchHasComeThoughAnEarlierOneGoesOn) {
  AheadQueue queue(kNoLimit, /*last=*/3, 4);
  queue.add({3, -1}, kBytes);
  queue.add({2, -2}, kBytes);
  EXPECT_EQ(queue.due(), (AheadPlace{2, -2}));
}

TEST(AheadQueue, OneCallIsThereUntilItIsUsedUp) {
  AheadQueue queue({}, 0, 1);
  for (int i = 1; i <= 3; ++i) queue.add({0, -i}, kBytes);
  EXPECT_EQ(taken(queue), (std::vector<AheadPlace>{{0, -3}}));
  queue.began({0, -3});
  EXPECT_EQ(queue.due(), std::nullopt) << "its backward goes on";
  EXPECT_FALSE(queue.ended({0, -3}));
  queue.began({0, -2});  // by itself
  EXPECT_EQ(queue.due(), std::nullopt);
  EXPECT_FALSE(queue.ended({0, -2}));
  EXPECT_EQ(queue.held(), 0);
  EXPECT_EQ(taken(queue), (std::vector<AheadPlace>{{0, -1}}));
  EXPECT_TRUE(queue.ended({0, -1})) << "nobody has asked for it";
  EXPECT_EQ(queue.due(), std::nullopt);
}

TEST(AheadQueue, BytesAreThoseOfAllThatIsThere) {
  AheadQueue queue({.one_call = false, .bytes = 2 * kBytes}, 0, 1);
  for (int i = 1; i <= 4; ++i) queue.add({0, -i}, kBytes);
  queue.began({0, -4});
  EXPECT_EQ(taken(queue), (std::vector<AheadPlace>{{0, -3}}));
  queue.ended({0, -4});
  EXPECT_EQ(taken(queue), (std::vector<AheadPlace>{{0, -2}}));
  AheadQueue little({.one_call = false, .bytes = kBytes - 1}, 0, 1);
  little.add({0, -1}, kBytes);
  EXPECT_EQ(little.due(), std::nullopt);
}

TEST(AheadQueue, MicrobatchesThatHaveEndedDoNotCount) {
  AheadQueue queue(kNoLimit, 7, 2);
  queue.add({0, -1}, kBytes);
  queue.began({0, -1});
  queue.add({1, -2}, kBytes);
  EXPECT_EQ(queue.due(), (AheadPlace{1, -2}));
  queue.ended({0, -1});
  EXPECT_EQ(queue.due(), std::nullopt);
}

TEST(AheadQueue, EnoughIsWhatKeepsTheRanksBehindBusy) {
  const auto enough = [](const char* name, int rank) {
    return enough_alive(*make_schedule(name, {4, 16, 6}), rank, 4, 16);
  };
  EXPECT_EQ(enough("simple", 1), 16) << "all forwards come first";
  EXPECT_EQ(enough("interleaved", 0), 4) << "not the 6 that may be in flight";
  EXPECT_EQ(enough("interleaved", 3), 1);
  EXPECT_EQ(enough("1f1b", 1), 3);
  EXPECT_EQ(enough("1f1b+2", 1), 5);
}

// ---- the order of backwards

ScheduleLists lists_of(const std::vector<std::string>& ranks, int microbatches) {
  std::string text = "smp-schedule 1\nmicrobatches " + std::to_string(microbatches) + "\n";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += "rank " + std::to_string(i) + ": " + ranks[i] + "\n";
  }
  return ScheduleLists::from_text(text, "a test");
}

TEST(AheadQueue, TurnsAreThoseOfTheList) {
  const auto usual = order_of(*make_interleaved(4), 1, 3);
  EXPECT_EQ(usual.turns, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(usual.last, 2);
  const auto schedule =
      make_list_schedule("lists", lists_of({"F0 F2 F1 B2 B0 B1", "F2 F1 F0 I1 W1 I0 W0 I2 W2"}, 3));
  const auto first = order_of(*schedule, 0, 3);
  EXPECT_EQ(first.turns, (std::vector<int>{1, 2, 0}));
  EXPECT_EQ(first.last, 1);
  const auto second = order_of(*schedule, 1, 3);
  EXPECT_EQ(second.turns, (std::vector<int>{1, 0, 2}));
  EXPECT_EQ(second.last, 0);
  EXPECT_EQ(order_of(*schedule, 0, 1).turns, std::vector<int>{0}) << "a step of one microbatch";
}

}  // namespace
}  // namespace smp::schedule
