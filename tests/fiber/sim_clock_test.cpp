// Simulated time: events in their order, and the same seed gives the same run.
#include "fiber/sim_clock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "fiber/scheduler.h"

namespace smp::fiber {
namespace {

using testing::ElementsAre;

TEST(SimClock, RunsEventsInOrderOfTimeAndTiesInOrderOfCalls) {
  SimClock clock(1);
  std::vector<int> order;
  for (const auto& [when, number] : {std::pair{30, 5}, {10, 1}, {20, 2}, {20, 3}, {20, 4}}) {
    clock.at(when, [&, when = when, number = number] {
      EXPECT_EQ(clock.now(), when);
      order.push_back(number);
    });
  }
  while (clock.advance()) {
  }
  EXPECT_THAT(order, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(clock.now(), 30);
}

TEST(SimClock, TimeMovesOnlyInAdvance) {
  SimClock clock(1);
  EXPECT_EQ(clock.now(), 0);
  EXPECT_FALSE(clock.advance());
  clock.at(50, [] {});
  EXPECT_EQ(clock.now(), 0);
  EXPECT_TRUE(clock.advance());
  EXPECT_EQ(clock.now(), 50);
  EXPECT_FALSE(clock.advance());
  EXPECT_EQ(clock.now(), 50);
}

TEST(SimClock, WhatComesTooLateComesNow) {
  SimClock clock(1);
  std::vector<base::Nanoseconds> times;
  clock.at(50, [&] { clock.at(20, [&] { times.push_back(clock.now()); }); });
  clock.at(60, [&] { times.push_back(clock.now()); });
  while (clock.advance()) {
  }
  EXPECT_THAT(times, ElementsAre(50, 60));
}

TEST(SimClock, AnEventMayCauseAnotherAtTheSameTime) {
  SimClock clock(1);
  std::vector<int> order;
  clock.at(10, [&] {
    order.push_back(1);
    clock.at(10, [&] { order.push_back(3); });
  });
  clock.at(10, [&] { order.push_back(2); });
  while (clock.advance()) {
  }
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST(SimClock, TheHashDependsOnWhatIsTracedAndInWhichOrder) {
  const auto hash_of = [](const std::vector<std::uint64_t>& values) {
    SimClock clock(1);
    for (const auto value : values) clock.trace(value);
    return clock.trace_hash();
  };
  EXPECT_EQ(hash_of({1, 2}), hash_of({1, 2}));
  EXPECT_NE(hash_of({1, 2}), hash_of({2, 1}));
  EXPECT_NE(hash_of({1, 2}), hash_of({1, 2, 0}));
}

/// Fibers that sleep for random times.
std::uint64_t hash_of_run(std::uint64_t seed, base::Nanoseconds slower = 0) {
  SimClock clock(seed);
  auto& scheduler = Scheduler::install();
  scheduler.set_simulation(&clock);
  Event ended;
  int running = 10;
  for (int number = 0; number < 10; ++number) {
    scheduler.spawn(
        [&, number] {
          for (int i = 0; i < 10; ++i) {
            const auto time = static_cast<base::Nanoseconds>(clock.random()() % 1000);
            scheduler.sleep_for(time + (number == 9 ? slower : 0), {"the test", "", -1, -1});
          }
          if (--running == 0) ended.signal();
        },
        {}, 1 << 20);
  }
  ended.rest({"the test", "", -1, -1});
  scheduler.set_simulation(nullptr);
  return clock.trace_hash();
}

TEST(SimClock, TheSameSeedGivesTheSameRun) {
  EXPECT_EQ(hash_of_run(3), hash_of_run(3));
  EXPECT_NE(hash_of_run(3), hash_of_run(4));
  EXPECT_NE(hash_of_run(3), hash_of_run(3, 1)) << "another time is another run";
}

}  // namespace
}  // namespace smp::fiber
