// What is told about fibers: who waits for what, that nothing can go on any more, and to an
// activity that its fiber runs or does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "fiber/scheduler.h"
#include "fiber/scheduler_testing.h"

namespace smp::fiber {
namespace scheduler_report_test {

using testing::ElementsAre;

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
    second.wait({"a sum", "", 3, -1, "DP_GROUP {1, 3}"});
  });
  clock_.at(4 * base::kSecond, [&] {
    EXPECT_THAT(scheduler_.waiting_report(),
                ElementsAre("a fiber waits for the test, for 4 s",
                            "rank 0, module <body> (forward), microbatch 2 waits for forward of "
                            "encoder.block.3 on rank 1, microbatch 2, for 4 s",
                            "a fiber waits for a sum on rank 3 of DP_GROUP {1, 3}, for 1 s"));
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

}  // namespace scheduler_report_test
}  // namespace smp::fiber
