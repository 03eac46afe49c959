// Fibers of one thread: who waits and who is woken, and who goes first.
#include "fiber/scheduler.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fiber/scheduler_testing.h"
#include "fiber/sim_clock.h"
#include "smp/error.h"

namespace smp::fiber {
namespace scheduler_test {

using testing::ElementsAre;

// ---- waiting -----------------------------------------------------------------------------------

TEST_F(SchedulerTest, ASignalWakesTheFiberThatWaits) {
  Event event;
  spawn([&] {
    note(1);
    event.wait(kTest);
    note(3);
  });
  scheduler_.yield();
  EXPECT_TRUE(event.waiting());
  note(2);
  event.signal();
  EXPECT_FALSE(event.waiting());
  finish();
  EXPECT_THAT(order_, ElementsAre(1, 2, 3));
}

TEST_F(SchedulerTest, ASignalBeforeTheWaitIsKept) {
  Event event;
  event.signal();
  spawn([&] { note(1); });
  event.wait(kTest);
  EXPECT_TRUE(order_.empty()) << "it went on without a switch";
}

TEST_F(SchedulerTest, OneSignalEndsOneWait) {
  Event event;
  event.signal();
  event.signal();
  spawn([&] {
    event.wait(kTest);
    note(1);
    event.wait(kTest);
    note(2);
  });
  scheduler_.yield();
  EXPECT_THAT(order_, ElementsAre(1));
  event.signal();
  finish();
  EXPECT_THAT(order_, ElementsAre(1, 2));
}

TEST_F(SchedulerTest, APollMaySignalWhoeverPolls) {
  Event event;
  bool polled = false;
  const auto poll = scheduler_.add_poll([&] {
    if (!std::exchange(polled, true)) event.signal();
    return true;
  });
  spawn([&] { note(1); });
  event.wait(kTest);
  EXPECT_TRUE(order_.empty()) << "it went on without a switch";
  polled = false;
  event.rest(kTest);
  EXPECT_TRUE(order_.empty());
}

/// It may be given work, and a priority, that others go before who were ready earlier.
TEST_F(SchedulerTest, WhoseRestEndsByItselfLetsThoseGoFirstThatGoBefore) {
  Event event;
  const auto poll = scheduler_.add_poll([&] {
    current_fiber()->priority = 5;
    event.signal();
    return true;
  });
  for (const int priority : {7, 3}) {
    scheduler_.spawn([this, priority] { order_.push_back(priority); }, {}, 1 << 20, priority);
  }
  event.rest(kTest);
  EXPECT_THAT(order_, testing::ElementsAre(3));
  current_fiber()->priority = 9;
  scheduler_.yield_to_those_before(9);
  EXPECT_THAT(order_, testing::ElementsAre(3, 7));
  current_fiber()->priority = 0;
}

TEST_F(SchedulerTest, WhoRestsIsInNoReport) {
  Event event;
  scheduler_.set_simulation(&clock_);
  clock_.random_choice = false;
  spawn([&] { event.rest({"work", "", 3, -1}); });
  scheduler_.yield();
  EXPECT_TRUE(event.waiting());
  EXPECT_FALSE(scheduler_.any_waiting());
  EXPECT_FALSE(scheduler_.any_waiting_for_peer());
  EXPECT_TRUE(scheduler_.waiting_report().empty());
  event.signal();
  finish();
}

TEST_F(SchedulerTest, ASignalBeforeTheRestIsKept) {
  Event event;
  event.signal();
  event.rest(kTest);
}

TEST_F(SchedulerTest, NobodyWaitsInsideParallelFor) {
  Event event;
  std::string said;
  const auto own = std::this_thread::get_id();
  const auto loop = [&](char**, const std::int64_t*, std::int64_t, std::int64_t) {
    if (std::this_thread::get_id() != own) return;
    try {
      event.wait({"forward", "encoder.3", 1, 0});
    } catch (const UsageError& error) {
      said = error.what();
    }
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  at::Tensor tensor = at::zeros({1 << 16});
  // A kernel of LibTorch, which knows of OpenMP: parallel_for in this file does not.
  at::TensorIterator::nullary_op(tensor).for_each(loop, /*grain_size=*/1);
  at::set_num_threads(threads);
  EXPECT_THAT(said, testing::HasSubstr("call encoder.3 outside of it"));
}

// ---- who goes first ----------------------------------------------------------------------------

TEST_F(SchedulerTest, ReadyFibersRunByPriorityAndThenInOrderOfArrival) {
  for (const auto& [priority, number] : {std::pair{2, 5}, {0, 1}, {1, 3}, {0, 2}, {1, 4}}) {
    spawn([this, number = number] { note(number); }, priority);
  }
  finish();
  EXPECT_THAT(order_, ElementsAre(1, 2, 3, 4, 5));
}

TEST_F(SchedulerTest, AFiberThatIsWokenRunsByThePriorityThatItHasThen) {
  Event first, second;
  spawn([&] {
    current_fiber()->priority = 2;
    first.wait(kTest);
    note(2);
  });
  spawn([&] {
    current_fiber()->priority = 1;
    second.wait(kTest);
    note(1);
  });
  scheduler_.yield();
  first.signal();
  second.signal();
  finish();
  EXPECT_THAT(order_, ElementsAre(1, 2));
}

TEST_F(SchedulerTest, YieldLetsAllOthersOfThePriorityRun) {
  for (const int number : {1, 2, 3}) {
    spawn([this, number] {
      note(number);
      scheduler_.yield();
      note(number + 10);
    });
  }
  finish();
  EXPECT_THAT(order_, ElementsAre(1, 2, 3, 11, 12, 13));
}

TEST_F(SchedulerTest, YieldToThoseBeforeLetsNobodyElseRun) {
  spawn(
      [&] {
        for (const int number : {5, 4, 1, 2}) spawn([this, number] { note(number); }, number);
        scheduler_.yield_to_those_before(3);
        note(0);
      },
      3);
  finish();
  EXPECT_THAT(order_, ElementsAre(1, 2, 0, 4, 5));
}

TEST_F(SchedulerTest, YieldToThoseBeforeReturnsAtOnceIfThereIsNobody) {
  spawn([this] { note(1); }, 7);
  scheduler_.yield_to_those_before(7);
  EXPECT_TRUE(order_.empty());
}

std::vector<int> order_drawn_with(std::uint64_t seed, bool random_choice = true) {
  SimClock clock(seed);
  clock.random_choice = random_choice;
  auto& scheduler = Scheduler::install();
  scheduler.set_simulation(&clock);
  std::vector<int> order;
  Event ended;
  for (int number = 0; number < 20; ++number) {
    scheduler.spawn(
        [&, number] {
          order.push_back(number);
          if (order.size() == 20) ended.signal();
        },
        {}, 1 << 20, -number);
  }
  ended.rest({"the test", "", -1, -1});
  scheduler.set_simulation(nullptr);
  return order;
}

TEST_F(SchedulerTest, InSimulatedTimeTheSeedDrawsTheOrder) {
  const auto drawn = order_drawn_with(7);
  EXPECT_EQ(order_drawn_with(7), drawn);
  EXPECT_NE(order_drawn_with(8), drawn);
  const auto by_priority = order_drawn_with(7, /*random_choice=*/false);
  EXPECT_TRUE(std::is_sorted(by_priority.rbegin(), by_priority.rend()));
}

}  // namespace scheduler_test
}  // namespace smp::fiber
