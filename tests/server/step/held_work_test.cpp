// server/step/held_work_test.cpp: work waits for what stands before it in its rank's list, for a
// bounded time.
#include "server/step/held_work.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>

#include "fiber/sim_clock.h"
#include "schedule/schedule.h"
#include "server/hand_clock.h"

namespace smp::server {
namespace held_work_test {

using base::kMillisecond;
using schedule::Phase;

/// Rank 1 of 3 under 1F1B: F0 F1 B0 F2 B1 F3 B2 B3. A forward takes 10 ms.
class HeldWorkTest : public ::testing::Test {
 protected:
  HeldWorkTest() {
    held_.computed(Phase::kForward, kForward);
    held_.computed(Phase::kBackward, kForward);
    held_.computed(Phase::kForward, kForward);
    task_.microbatches = 4;
    task_.schedule = schedule_.get();
    step_ = std::make_unique<StepState>(1, task_, PpRank(1), 0);
    for (const int i : {0, 1}) step_->begins(Phase::kForward, i);
    step_->begins(Phase::kBackward, 0);
  }
  /// How long work waits on a fiber of its own, while this one does `meanwhile`.
  base::Nanoseconds wait_of(
      Phase phase, int microbatch, const std::function<void()>& meanwhile = [] {}) {
    fiber::Event ended;
    const auto start = clock_.now();
    scheduler_.spawn(
        [&] {
          held_.hold(*step_, phase, microbatch);
          ended.signal();
        },
        {}, 1 << 20);
    scheduler_.yield();
    meanwhile();
    ended.wait({"the test", "", -1, -1});
    return clock_.now() - start;
  }
  /// Whether work that begins on this fiber waits, so that another one runs.
  bool lets_others_run(Phase phase, int microbatch) {
    bool other_ran = false;
    scheduler_.spawn([&] { other_ran = true; }, {}, 1 << 20);
    held_.hold(*step_, phase, microbatch);
    const bool waited = other_ran;
    scheduler_.yield();
    return waited;
  }
  void sleep(base::Nanoseconds time) { scheduler_.sleep_for(time, {"the test", "", -1, -1}); }

  static constexpr auto kForward = 10 * kMillisecond;

  fiber::Scheduler& scheduler_ = fiber::Scheduler::install();
  base::SteadyClock clock_;
  HeldWork held_{scheduler_, clock_};
  std::unique_ptr<schedule::Schedule> schedule_ =
      schedule::make_schedule("1f1b", {.pp_size = 3, .microbatches = 4});
  StepTask task_;
  std::unique_ptr<StepState> step_;
};

TEST_F(HeldWorkTest, WhatIsNextDoesNotWait) {
  EXPECT_EQ(step_->progress.hold(Phase::kForward, 2), 0);
  EXPECT_FALSE(lets_others_run(Phase::kForward, 2));
  step_->begins(Phase::kForward, 2);
  EXPECT_EQ(step_->progress.hold(Phase::kBackward, 1), 0);
  EXPECT_FALSE(lets_others_run(Phase::kBackward, 1));
}

TEST_F(HeldWorkTest, WhatStandsLaterLetsOthersRun) {
  EXPECT_TRUE(lets_others_run(Phase::kBackward, 1)) << "F2 stands before it";
}

TEST_F(HeldWorkTest, WhatStandsLaterWaitsAsLongAsItUsuallyTakes) {
  EXPECT_GE(wait_of(Phase::kBackward, 1), kForward);  // F2 stands before B1
}

TEST_F(HeldWorkTest, AWaitEndsWhenWhatStoodBeforeHasBegun) {
  bool began = false;
  bool waited_for_it = false;
  scheduler_.spawn(
      [&] {
        held_.computed(Phase::kBackward, 100'000 * base::kSecond);  // so it may wait for very long
        held_.hold(*step_, Phase::kBackward, 1);
        waited_for_it = began;
      },
      {}, 1 << 20);
  scheduler_.yield();
  sleep(2 * kMillisecond);
  began = true;
  step_->begins(Phase::kForward, 2);
  while (!waited_for_it) sleep(kMillisecond);
}

TEST_F(HeldWorkTest, WaitsInVainAreLimited) {
  wait_of(Phase::kBackward, 1);
  // 30 ms were computed, of which a fiftieth may be lost: it is.
  EXPECT_GT(step_->progress.hold(Phase::kBackward, 1), 0);
  schedule::HoldRule expected;
  expected.computed(Phase::kBackward, 3 * kForward);
  expected.waited_in_vain(kForward);
  EXPECT_EQ(expected.longest(Phase::kBackward, 1), 0);
  EXPECT_FALSE(lets_others_run(Phase::kBackward, 1)) << "it waited again";
}

TEST_F(HeldWorkTest, NothingWaitsInAStepThatFailed) {
  held_.computed(Phase::kBackward, 100'000 * base::kSecond);
  wait_of(Phase::kBackward, 1, [&] {
    sleep(kMillisecond);
    step_->failure = std::make_exception_ptr(std::runtime_error("test"));
  });
}

TEST_F(HeldWorkTest, NothingWaitsInSimulatedTime) {
  fiber::SimClock clock(1);
  scheduler_.set_simulation(&clock);
  EXPECT_FALSE(lets_others_run(Phase::kBackward, 1));
  scheduler_.set_simulation(nullptr);
}

TEST(MeasuredExecution, CountsTheTimeInWhichItHasTheThread) {
  fiber::Scheduler::install();
  HandClock clock;
  ScopeServices services(GlobalRank(0), clock);
  ExecutionScope scope(services, {kBody, 0, Phase::kBackward, false, {}}, {}, 1);
  EXPECT_EQ(scope.measured(), 0);
  scope.measure(&clock);
  clock.time += 5;
  scope.on_switch(false);
  clock.time += 100;
  scope.on_switch(true);
  clock.time += 2;
  EXPECT_EQ(scope.measured(), 7);
  scope.measure(&clock);
  EXPECT_EQ(scope.measured(), 0) << "it begins anew";
  scope.measure(nullptr);
  EXPECT_EQ(scope.measured(), 0);
}

}  // namespace held_work_test
}  // namespace smp::server
