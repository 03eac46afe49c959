// A clock that counts sleeping, but not waiting for a core.
#include "base/work_clock.h"

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace smp::base {
namespace {

void compute_for(Nanoseconds time) {
  const auto end = thread_cpu_time() + time;
  while (thread_cpu_time() < end) {
  }
}

TEST(WorkClock, CountsASleep) {
  WorkClock clock;
  const timespec duration{0, 20'000'000};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &duration, nullptr);
  EXPECT_GE(clock.now(), 20 * kMillisecond);
}

TEST(WorkClock, TellsWhatTheThreadComputedItself) {
  WorkClock clock;
  compute_for(10 * kMillisecond);
  const timespec duration{0, 30'000'000};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &duration, nullptr);
  EXPECT_GE(clock.now(), 40 * kMillisecond);
  EXPECT_GE(clock.on_core(), 10 * kMillisecond);
  EXPECT_LT(clock.on_core(), 25 * kMillisecond);
}

TEST(WorkClock, DoesNotCountWhatIsSkipped) {
  WorkClock clock;
  compute_for(20 * kMillisecond);
  clock.skip();
  compute_for(5 * kMillisecond);
  EXPECT_GE(clock.now(), 5 * kMillisecond);
  EXPECT_LT(clock.now(), 15 * kMillisecond);
}

TEST(WorkClock, NeverGoesBack) {
  WorkClock clock;
  Nanoseconds last = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto now = clock.now();
    EXPECT_GE(now, last);
    last = now;
  }
}

/// More threads than cores: each gets a part of one.
TEST(WorkClock, DoesNotCountWaitingForACore) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  const auto count = 3 * std::max(1u, std::thread::hardware_concurrency());
  for (unsigned i = 0; i < count; ++i) {
    others.emplace_back([&] {
      while (!stop) {
      }
    });
  }
  const SteadyClock steady;
  WorkClock clock;
  const auto before = steady.now();
  constexpr Nanoseconds kWork = 60 * kMillisecond;
  compute_for(kWork);
  const auto counted = clock.now(), passed = steady.now() - before;
  stop = true;
  for (auto& thread : others) thread.join();
  EXPECT_GE(counted, kWork);
  EXPECT_LT(counted, kWork + 20 * kMillisecond) << "of " << passed;
}

}  // namespace
}  // namespace smp::base
