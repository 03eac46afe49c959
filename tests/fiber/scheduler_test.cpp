// Fibers of one thread: who waits and who is woken, who goes first, and what is told about those
// that wait.
#include "fiber/scheduler.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fiber/sim_clock.h"
#include "smp/error.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

namespace smp::fiber {
namespace {

using testing::ElementsAre;

/// Fibers that the test starts, and their end.
class SchedulerTest : public testing::Test {
 protected:
  ~SchedulerTest() override {
    finish();
    scheduler_.set_idle_policy(IdlePolicy{});
    scheduler_.set_simulation(nullptr);
    scheduler_.set_deadlock_handler(nullptr);
  }
  void spawn(std::function<void()> body, Priority priority = 0) {
    ++running_;
    scheduler_.spawn(
        [this, body = std::move(body)] {
          body();
          if (--running_ == 0) ended_.signal();
        },
        *base::current_fiber_slots(), kStackBytes, priority);
  }
  void finish() {
    while (running_ > 0) ended_.wait(kTest);
  }
  void note(int number) { order_.push_back(number); }

  static constexpr WaitReason kTest{"the test", "", -1, -1};
  static constexpr std::size_t kStackBytes = 1 << 20;
  Scheduler& scheduler_ = Scheduler::install();
  SimClock clock_{1};
  std::vector<int> order_;

 private:
  int running_ = 0;
  Event ended_;
};

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

// ---- beginning and end -------------------------------------------------------------------------

TEST_F(SchedulerTest, ANewFiberIsReadyAndDoesNotRunYet) {
  const auto before = scheduler_.live_fibers();
  spawn([this] { note(current_fiber()->priority == 4); }, 4);
  EXPECT_TRUE(order_.empty());
  EXPECT_EQ(scheduler_.live_fibers(), before + 1);
  finish();
  EXPECT_THAT(order_, ElementsAre(1));
  scheduler_.yield();
  EXPECT_EQ(scheduler_.live_fibers(), before);
}

TEST_F(SchedulerTest, EveryFiberHasItsOwnPointers) {
  int marks[3];
  base::FiberSlots slots{};
  slots.back() = &marks[0];
  const auto own = [] { return (*base::current_fiber_slots()).back(); };
  scheduler_.spawn(
      [&] {
        EXPECT_EQ(own(), &marks[0]) << "those of spawn()";
        (*base::current_fiber_slots()).back() = &marks[1];
        scheduler_.yield();
        EXPECT_EQ(own(), &marks[1]);
        note(1);
      },
      slots, kStackBytes);
  spawn([&] {
    (*base::current_fiber_slots()).back() = &marks[2];
    scheduler_.yield();
    EXPECT_EQ(own(), &marks[2]);
  });
  finish();
  EXPECT_THAT(order_, ElementsAre(1));
  EXPECT_EQ(own(), nullptr);
  EXPECT_EQ(slots.back(), &marks[0]) << "a copy was used";
}

TEST_F(SchedulerTest, AFiberThatIsGivenUpNeverComesBack) {
#ifdef __SANITIZE_ADDRESS__
  const __lsan::ScopedDisabler its_stack;
#endif
  const auto before = scheduler_.live_fibers();
  scheduler_.spawn(
      [&] {
        note(1);
        scheduler_.give_up();
        note(2);
      },
      {}, kStackBytes);
  spawn([&] { note(3); });
  finish();
  scheduler_.yield();
  EXPECT_THAT(order_, ElementsAre(1, 3));
  EXPECT_EQ(scheduler_.live_fibers(), before);
}

TEST_F(SchedulerTest, AnExceptionThatLeavesAFiberEndsTheProcess) {
  const auto leave = [this] {
    spawn([] { throw std::runtime_error("out of a fiber"); });
    finish();
  };
  EXPECT_DEATH(leave(), "an exception left a fiber: out of a fiber");
}

TEST_F(SchedulerTest, EveryThreadHasItsOwnFibers) {
  Event event;
  spawn([&] { event.wait(kTest); });
  scheduler_.yield();
  std::thread([&] {
#ifdef __SANITIZE_ADDRESS__
    const __lsan::ScopedDisabler lives_as_long_as_the_thread;
#endif
    EXPECT_FALSE(Scheduler::installed());
    EXPECT_EQ(current_fiber(), nullptr);
    auto& other = Scheduler::install();
    EXPECT_NE(&other, &scheduler_);
    EXPECT_EQ(&Scheduler::install(), &other);
    EXPECT_FALSE(other.any_waiting());
    Event own;
    other.spawn([&] { own.signal(); }, {}, kStackBytes);
    own.wait(kTest);
  }).join();
  EXPECT_TRUE(scheduler_.any_waiting());
  event.signal();
  finish();
}

// ---- polls and time ----------------------------------------------------------------------------

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

// ---- what is told ------------------------------------------------------------------------------

/// Notes how often it was told what, and whether it has the thread.
class NamedActivity final : public Activity {
 public:
  explicit NamedActivity(const char* name) : name_(name) { current_fiber()->activity = this; }
  ~NamedActivity() { current_fiber()->activity = nullptr; }
  void on_switch(bool running) noexcept override {
    calls.push_back(running);
    this->running = running;
  }
  void describe(char* text, std::size_t size) const noexcept override {
    std::snprintf(text, size, "%s", name_);
  }
  bool running = true;
  std::vector<bool> calls;

 private:
  const char* name_;
};

TEST_F(SchedulerTest, TheReportNamesWhoWaitsForWhatOldestFirst) {
  scheduler_.set_simulation(&clock_);
  clock_.random_choice = false;
  Event first, second, third;
  spawn([&] {
    const NamedActivity activity("rank 0, module <body> (forward), microbatch 2");
    first.wait({"forward", "encoder.block.3", 1, 2});
  });
  spawn([&] {
    scheduler_.sleep_for(3 * base::kSecond, kTest);
    second.wait({"the end of the step", "", -1, -1});
  });
  clock_.at(4 * base::kSecond, [&] {
    EXPECT_THAT(scheduler_.waiting_report(),
                ElementsAre("a fiber waits for the test, for 4 s",
                            "rank 0, module <body> (forward), microbatch 2 waits for forward of "
                            "encoder.block.3 on rank 1, microbatch 2, for 4 s",
                            "a fiber waits for the end of the step, for 1 s"));
    EXPECT_TRUE(scheduler_.any_waiting_for_peer());
    first.signal();
    second.signal();
  });
  clock_.at(5 * base::kSecond, [&] { third.signal(); });
  third.wait(kTest);
  finish();
  EXPECT_FALSE(scheduler_.any_waiting());
  EXPECT_TRUE(scheduler_.waiting_report().empty());
}

TEST_F(SchedulerTest, OnlyAPeersAnswerIsAWaitForAPeer) {
  Event event;
  spawn([&] { event.wait({"the end of the step", "", -1, 3}); });
  scheduler_.yield();
  EXPECT_TRUE(scheduler_.any_waiting());
  EXPECT_FALSE(scheduler_.any_waiting_for_peer());
  event.signal();
  finish();
}

TEST_F(SchedulerTest, ADeadlockOfSimulatedTimeIsHandled) {
  scheduler_.set_simulation(&clock_);
  Event event;
  std::vector<std::string> report;
  scheduler_.set_deadlock_handler([&] {
    report = scheduler_.waiting_report();
    event.signal();
  });
  clock_.at(7, [this] { note(1); });
  event.wait({"what never comes", "", -1, -1});
  EXPECT_THAT(order_, ElementsAre(1)) << "events come first";
  EXPECT_THAT(report, ElementsAre(testing::HasSubstr("waits for what never comes")));
}

TEST_F(SchedulerTest, ADeadlockThatNobodyHandlesEndsTheProcess) {
  const auto wait_for_ever = [this] {
    scheduler_.set_simulation(&clock_);
    Event().wait({"backward", "decoder", 2, 5});
  };
  EXPECT_DEATH(wait_for_ever(),
               "deadlock.*\n.*waits for backward of decoder on rank 2, microbatch 5");
}

TEST_F(SchedulerTest, AnActivityRunsOnlyWhileItsFiberDoes) {
  Event event;
  NamedActivity* first = nullptr;
  spawn([&] {
    NamedActivity activity("first");
    first = &activity;
    scheduler_.yield();
    EXPECT_TRUE(activity.running);
    event.wait(kTest);
    EXPECT_TRUE(activity.running);
    EXPECT_FALSE(activity.calls.front());
    EXPECT_TRUE(activity.calls.back());
  });
  spawn([&] {
    const NamedActivity activity("second");
    EXPECT_FALSE(first->running);
    scheduler_.yield();
    EXPECT_TRUE(activity.running);
    EXPECT_FALSE(first->running);
    event.signal();
  });
  finish();
}

TEST_F(SchedulerTest, AnActivityIsToldOfEveryWaitAndYieldInPairs) {
  Event event;
  event.signal();
  NamedActivity activity("the test");
  event.wait(kTest);
  EXPECT_TRUE(activity.calls.empty()) << "nothing was waited for";
  const auto poll = scheduler_.add_poll([&] {
    EXPECT_FALSE(activity.running);
    event.signal();
    return true;
  });
  event.wait(kTest);
  EXPECT_THAT(activity.calls, ElementsAre(false, true)) << "no switch, but a wait";
  activity.calls.clear();
  spawn([&] { EXPECT_FALSE(activity.running); }, -1);
  scheduler_.yield_to_those_before(0);
  EXPECT_TRUE(activity.running);
  EXPECT_FALSE(activity.calls.front());
  EXPECT_TRUE(activity.calls.back());
  activity.calls.clear();
  scheduler_.yield_to_those_before(0);
  EXPECT_TRUE(activity.calls.empty()) << "nobody went before";
}

}  // namespace
}  // namespace smp::fiber
