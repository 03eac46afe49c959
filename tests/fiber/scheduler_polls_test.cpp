// What the scheduler does while no fiber is ready: polls, sleep in real and in simulated time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "fiber/scheduler.h"
#include "fiber/scheduler_testing.h"

namespace smp::fiber {
namespace scheduler_polls_test {

using testing::ElementsAre;

TEST_F(SchedulerTest, PollsRunWhenNothingIsReadyUntilTheirHandleIsGone) {
  Event event;
  int polls = 0;
  auto poll = scheduler_.add_poll([&] {
    if (++polls == 1000) event.signal();
    return false;
  });
  event.wait(kTest);
  EXPECT_GE(polls, 1000);
  const int before = polls;
  EXPECT_FALSE(scheduler_.poll_all());
  EXPECT_EQ(polls, before + 1);
  poll.reset();
  scheduler_.poll_all();
  EXPECT_EQ(polls, before + 1);
}

TEST_F(SchedulerTest, PollAllRunsEveryPollAndTellsOfProgress) {
  std::vector<std::shared_ptr<void>> polls;
  for (const int number : {1, 2, 3}) {
    polls.push_back(scheduler_.add_poll([this, number] {
      note(number);
      return number == 1;
    }));
  }
  EXPECT_TRUE(scheduler_.poll_all());
  EXPECT_THAT(order_, ElementsAre(1, 2, 3));
  polls.erase(polls.begin());
  EXPECT_FALSE(scheduler_.poll_all());
  EXPECT_THAT(order_, ElementsAre(1, 2, 3, 2, 3));
}

TEST_F(SchedulerTest, APollMayAddAnother) {
  std::vector<std::shared_ptr<void>> polls;
  polls.push_back(scheduler_.add_poll([&] {
    note(1);
    if (polls.size() < 20) {
      polls.push_back(scheduler_.add_poll([this] {
        note(2);
        return false;
      }));
    }
    return false;
  }));
  for (int i = 0; i < 20; ++i) scheduler_.poll_all();
  EXPECT_EQ(std::count(order_.begin(), order_.end(), 1), 20);
}

TEST_F(SchedulerTest, SleepersWakeInOrderOfTime) {
  const auto start = scheduler_.clock().now();
  for (const int milliseconds : {12, 3, 6}) {
    spawn([this, start, milliseconds] {
      scheduler_.sleep_for(milliseconds * base::kMillisecond, kTest);
      EXPECT_GE(scheduler_.clock().now() - start, milliseconds * base::kMillisecond);
      note(milliseconds);
    });
  }
  finish();
  EXPECT_THAT(order_, ElementsAre(3, 6, 12));
}

TEST_F(SchedulerTest, SimulatedSleepTakesSimulatedTimeOnly) {
  EXPECT_FALSE(scheduler_.simulated());
  scheduler_.set_simulation(&clock_);
  EXPECT_TRUE(scheduler_.simulated());
  for (const int hours : {12, 3, 6}) {
    spawn([this, hours] {
      scheduler_.sleep_for(hours * 3600 * base::kSecond, kTest);
      EXPECT_EQ(scheduler_.clock().now(), hours * 3600 * base::kSecond);
      note(hours);
    });
  }
  finish();
  EXPECT_THAT(order_, ElementsAre(3, 6, 12));
}

TEST_F(SchedulerTest, TheIdlePolicyTellsWhetherCoresAreShared) {
  EXPECT_FALSE(scheduler_.oversubscribed());
  IdlePolicy policy;
  policy.oversubscribed = true;
  scheduler_.set_idle_policy(policy);
  EXPECT_TRUE(scheduler_.oversubscribed());
}

}  // namespace scheduler_polls_test
}  // namespace smp::fiber
