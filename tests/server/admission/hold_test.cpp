// server/admission/hold_test.cpp: work waits for what stands before it in its rank's list, for a
// bounded time.
#include <functional>
#include <utility>

#include "fiber/sim_clock.h"
#include "server/admission/admission_testing.h"
#include "server/hand_clock.h"

namespace smp::server {
namespace hold_test {

using base::kMillisecond;
using schedule::Phase;

/// Rank 1 of 3 under 1F1B: F0 F1 B0 F2 B1 F3 B2 B3. A forward takes 10 ms.
class HoldTest : public test::AdmissionTest {
 protected:
  HoldTest()
      : AdmissionTest(schedule::make_schedule("1f1b", {.pp_size = 3, .microbatches = 4}), 4, 1) {
    times_.rule().computed(Phase::kForward, kForward);
    times_.rule().computed(Phase::kBackward, kForward);
    times_.rule().computed(Phase::kForward, kForward);
    for (const int i : {0, 1}) progress_.begins(Phase::kForward, i);
    progress_.begins(Phase::kBackward, 0);
  }
  /// How long work waits on a fiber of its own, while this one does `meanwhile`.
  base::Nanoseconds wait_of(
      Phase phase, int microbatch, const std::function<void()>& meanwhile = [] {}) {
    fiber::Event ended;
    const auto start = clock_.now();
    scheduler_.spawn(
        [&] {
          admission_.hold(phase, microbatch);
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
    admission_.hold(phase, microbatch);
    const bool waited = other_ran;
    scheduler_.yield();
    return waited;
  }
  void sleep(base::Nanoseconds time) { scheduler_.sleep_for(time, {"the test", "", -1, -1}); }

  static constexpr auto kForward = 10 * kMillisecond;
};

TEST_F(HoldTest, WhatIsNextDoesNotWait) {
  EXPECT_EQ(progress_.hold(Phase::kForward, 2), 0);
  EXPECT_FALSE(lets_others_run(Phase::kForward, 2));
  progress_.begins(Phase::kForward, 2);
  EXPECT_EQ(progress_.hold(Phase::kBackward, 1), 0);
  EXPECT_FALSE(lets_others_run(Phase::kBackward, 1));
}

TEST_F(HoldTest, WhatStandsLaterLetsOthersRun) {
  EXPECT_TRUE(lets_others_run(Phase::kBackward, 1)) << "F2 stands before it";
}

TEST_F(HoldTest, WhatStandsLaterWaitsAsLongAsItUsuallyTakes) {
  const auto waited = wait_of(Phase::kBackward, 1, [&] {
    EXPECT_THAT(waiting(), testing::ElementsAre(1));
    EXPECT_THAT(reasons(), testing::ElementsAre(Reason::kHold));
  });
  EXPECT_GE(waited, kForward);  // F2 stands before B1
  EXPECT_THAT(waiting(), testing::IsEmpty());
}

TEST_F(HoldTest, AWaitEndsWhenWhatStoodBeforeHasBegun) {
  bool began = false;
  bool waited_for_it = false;
  scheduler_.spawn(
      [&] {
        times_.rule().computed(Phase::kBackward,
                               100'000 * base::kSecond);  // so it may wait for very long
        admission_.hold(Phase::kBackward, 1);
        waited_for_it = began;
      },
      {}, 1 << 20);
  scheduler_.yield();
  sleep(2 * kMillisecond);
  began = true;
  progress_.begins(Phase::kForward, 2);
  while (!waited_for_it) sleep(kMillisecond);
}

TEST_F(HoldTest, WaitsInVainAreLimited) {
  wait_of(Phase::kBackward, 1);
  // 30 ms were computed, of which a fiftieth may be lost: it is.
  EXPECT_GT(progress_.hold(Phase::kBackward, 1), 0);
  schedule::HoldRule expected;
  expected.computed(Phase::kBackward, 3 * kForward);
  expected.waited_in_vain(kForward);
  EXPECT_EQ(expected.longest(Phase::kBackward, 1), 0);
  EXPECT_FALSE(lets_others_run(Phase::kBackward, 1)) << "it waited again";
}

TEST_F(HoldTest, NothingWaitsInAStepThatFailed) {
  times_.rule().computed(Phase::kBackward, 100'000 * base::kSecond);
  wait_of(Phase::kBackward, 1, [&] {
    sleep(kMillisecond);
    admission_.open_all();
  });
}

TEST_F(HoldTest, NothingWaitsInSimulatedTime) {
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
  EXPECT_EQ(scope.stopwatch().elapsed(), 0);
  scope.stopwatch().start(clock);
  clock.time += 5;
  scope.on_switch(false);
  clock.time += 100;
  scope.on_switch(true);
  clock.time += 2;
  EXPECT_EQ(scope.stopwatch().elapsed(), 7);
  scope.stopwatch().start(clock);
  EXPECT_EQ(scope.stopwatch().elapsed(), 0) << "it begins anew";
  scope.stopwatch().stop();
  EXPECT_EQ(scope.stopwatch().elapsed(), 0);
}

}  // namespace hold_test
}  // namespace smp::server
