// Which call may be computed ahead: in the order of backwards, within the credit, and not where a
// forward may come for which others wait.
#include "schedule/ahead/ahead_queue.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

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
  AheadQueue queue(kNoLimit, /*microbatches=*/4, /*enough=*/2);
  queue.add({1, -2}, kBytes);
  queue.add({1, -3}, kBytes);
  EXPECT_EQ(queue.due(), std::nullopt) << "of two microbatches one is there";
  queue.add({0, -1}, kBytes);
  EXPECT_EQ(taken(queue), (std::vector<AheadPlace>{{0, -1}, {1, -3}, {1, -2}}));
  EXPECT_EQ(queue.held(), 3 * kBytes);
  EXPECT_EQ(queue.ahead(), 3);
}

TEST(AheadQueue, AfterTheLastMicrobatchNothingElseComes) {
  AheadQueue queue(kNoLimit, 4, 4);
  queue.add({2, -1}, kBytes);
  EXPECT_EQ(queue.due(), std::nullopt);
  queue.add({3, -2}, kBytes);
  EXPECT_EQ(queue.due(), (AheadPlace{2, -1}));
}

TEST(AheadQueue, OneCallIsThereUntilItIsUsedUp) {
  AheadQueue queue({}, 1, 1);
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
  AheadQueue queue({.one_call = false, .bytes = 2 * kBytes}, 1, 1);
  for (int i = 1; i <= 4; ++i) queue.add({0, -i}, kBytes);
  queue.began({0, -4});
  EXPECT_EQ(taken(queue), (std::vector<AheadPlace>{{0, -3}}));
  queue.ended({0, -4});
  EXPECT_EQ(taken(queue), (std::vector<AheadPlace>{{0, -2}}));
  AheadQueue little({.one_call = false, .bytes = kBytes - 1}, 1, 1);
  little.add({0, -1}, kBytes);
  EXPECT_EQ(little.due(), std::nullopt);
}

TEST(AheadQueue, MicrobatchesThatHaveEndedDoNotCount) {
  AheadQueue queue(kNoLimit, 8, 2);
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

}  // namespace
}  // namespace smp::schedule
