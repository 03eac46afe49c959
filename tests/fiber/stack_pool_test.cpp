// Stacks of fibers: made once, used again, and guarded below.
#include "fiber/stack_pool.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "fiber/scheduler.h"

namespace smp::fiber {
namespace {

TEST(StackPool, AStackThatCameBackIsUsedAgain) {
  StackPool pool(1 << 16);
  auto first = pool.allocate();
  auto second = pool.allocate();
  void* const address = first.sp;
  EXPECT_NE(second.sp, address);
  pool.deallocate(first);
  auto third = pool.allocate();
  EXPECT_EQ(third.sp, address);
  EXPECT_NE(pool.allocate().sp, address);
}

TEST(StackPool, CountsStacksInUse) {
  StackPool pool(1 << 16);
  EXPECT_EQ(pool.stack_bytes(), 1u << 16);
  EXPECT_EQ(pool.in_use(), 0u);
  auto first = pool.allocate();
  auto second = pool.allocate();
  EXPECT_EQ(pool.in_use(), 2u);
  pool.deallocate(first);
  EXPECT_EQ(pool.in_use(), 1u);
  pool.deallocate(second);
  EXPECT_EQ(pool.in_use(), 0u);
}

TEST(StackPool, CopiesShareTheStacks) {
  StackPool pool(1 << 16);
  StackPool copy = pool;  // as Boost.Fiber makes them
  auto stack = copy.allocate();
  EXPECT_EQ(pool.in_use(), 1u);
  void* const address = stack.sp;
  pool.deallocate(stack);
  EXPECT_EQ(copy.in_use(), 0u);
  EXPECT_EQ(copy.allocate().sp, address);
}

TEST(StackPool, AllBytesAskedForCanBeWritten) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{100'000}}) {
    StackPool pool(bytes);
    const auto stack = pool.allocate();
    EXPECT_GE(stack.size, bytes);
    std::memset(static_cast<char*>(stack.sp) - bytes, 1, bytes);
  }
}

TEST(StackPool, FibersThatEndedGiveTheirStacksBack) {
  auto& scheduler = Scheduler::install();
  std::vector<const void*> frames;
  for (int i = 0; i < 3; ++i) {
    Event ended;
    scheduler.spawn(
        [&] {
          const int here = 0;
          frames.push_back(&here);
          ended.signal();
        },
        {}, 3 << 16);
    ended.wait({"the test", "", -1, -1});
    scheduler.yield();
    scheduler.sleep_for(1, {"the test", "", -1, -1});  // what ended is freed when nothing is ready
  }
  EXPECT_EQ(frames[1], frames[0]);
  EXPECT_EQ(frames[2], frames[0]);
}

#ifndef __SANITIZE_ADDRESS__  // which reports overflows itself

class Overflowing final : public Activity {
 public:
  void on_switch(bool) noexcept override {}
  void describe(char* text, std::size_t size) const noexcept override {
    std::snprintf(text, size, "rank 2, module encoder.block.3, microbatch 1");
  }
};

int use_stack(int depth) {
  volatile char frame[1024];
  frame[0] = static_cast<char>(depth);
  return depth == 0 ? frame[0] : use_stack(depth - 1) + frame[0];
}

TEST(StackPool, AnOverflowNamesTheModuleAndTheRemedy) {
  const auto overflow = [](std::size_t stack_bytes) {
    auto& scheduler = Scheduler::install();
    Event ended;
    scheduler.spawn(
        [&] {
          Overflowing activity;
          current_fiber()->activity = &activity;
          use_stack(400);
          current_fiber()->activity = nullptr;
          ended.signal();
        },
        {}, stack_bytes);
    ended.wait({"the test", "", -1, -1});
  };
  overflow(1 << 20);
  EXPECT_DEATH(overflow(1 << 17),
               "smp: rank 2, module encoder.block.3, microbatch 1: the fiber's stack overflowed; "
               "raise fiber_stack_bytes");
}

#endif

}  // namespace
}  // namespace smp::fiber
