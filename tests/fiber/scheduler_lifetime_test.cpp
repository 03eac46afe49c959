// How fibers begin and end: what they start with, what ends with them, and that each thread has its
// own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "fiber/scheduler.h"
#include "fiber/scheduler_testing.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

namespace smp::fiber {
namespace scheduler_lifetime_test {

using testing::ElementsAre;

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

/// Of a program that calls exit() while fibers of its own wait, or of the child that it has forked.
[[noreturn]] void exit_with_waiting_fibers(bool in_child) {
  ::alarm(20);  // it would wait for ever
  auto& scheduler = Scheduler::install();
  static Event never;
  static constexpr WaitReason kForEver{"what never comes", "", -1, -1};
  for (int i = 0; i < 3; ++i) scheduler.spawn([] { never.wait(kForEver); }, {}, 1 << 20);
  scheduler.yield();
  if (scheduler.live_fibers() < 3) std::_Exit(1);
  if (!in_child) std::exit(5);
  const auto child = ::fork();
  if (child == 0) std::exit(6);
  int status = -1;
  ::waitpid(child, &status, 0);
  std::_Exit(WIFEXITED(status) ? WEXITSTATUS(status) : 7);
}

TEST(SchedulerLifetimeDeathTest, ExitDoesNotWaitForFibers) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_waiting_fibers(false), testing::ExitedWithCode(5), "^$");
  EXPECT_EXIT(exit_with_waiting_fibers(true), testing::ExitedWithCode(6), "^$");
}

}  // namespace scheduler_lifetime_test
}  // namespace smp::fiber
