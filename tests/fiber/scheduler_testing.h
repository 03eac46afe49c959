// fiber/scheduler_testing.h: fibers that a test starts and that end before it does.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "fiber/scheduler.h"
#include "fiber/sim_clock.h"

namespace smp::fiber {

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

}  // namespace smp::fiber
