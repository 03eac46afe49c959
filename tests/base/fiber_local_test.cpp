// Pointers of a fiber: set for a while, and each fiber and each thread has its own.
#include "base/fiber_local.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <string>
#include <thread>
#include <utility>

namespace smp::base {
namespace {

const FiberLocal<int> number;
const FiberLocal<const char> text;

TEST(FiberLocal, IsNullUntilItIsSet) {
  EXPECT_EQ(number.get(), nullptr);
  int value = 1;
  number.set(&value);
  EXPECT_EQ(number.get(), &value);
  number.set(nullptr);
  EXPECT_EQ(number.get(), nullptr);
}

TEST(FiberLocal, ScopesNest) {
  int outer = 1, inner = 2;
  {
    const FiberLocalScope<int> first(number, &outer);
    EXPECT_EQ(number.get(), &outer);
    {
      const FiberLocalScope<int> second(number, &inner);
      EXPECT_EQ(number.get(), &inner);
      const FiberLocalScope<int> third(number, nullptr);
      EXPECT_EQ(number.get(), nullptr);
    }
    EXPECT_EQ(number.get(), &outer);
  }
  EXPECT_EQ(number.get(), nullptr);
}

TEST(FiberLocal, TwoDoNotMix) {
  int value = 1;
  const FiberLocalScope<int> first(number, &value);
  EXPECT_EQ(text.get(), nullptr);
  const FiberLocalScope<const char> second(text, "text");
  EXPECT_EQ(number.get(), &value);
  EXPECT_STREQ(text.get(), "text");
}

TEST(FiberLocal, BelongsToTheSlotsThatAreInstalled) {
  int first = 1, second = 2;
  FiberSlots slots{};  // of another fiber
  const FiberLocalScope<int> scope(number, &first);
  auto* const own = std::exchange(current_fiber_slots(), &slots);
  EXPECT_EQ(number.get(), nullptr);
  number.set(&second);
  current_fiber_slots() = own;
  EXPECT_EQ(number.get(), &first);
  current_fiber_slots() = &slots;
  EXPECT_EQ(number.get(), &second);
  current_fiber_slots() = own;
}

TEST(FiberLocal, EveryThreadHasItsOwn) {
  int value = 1;
  const FiberLocalScope<int> scope(number, &value);
  std::thread([] {
    EXPECT_EQ(number.get(), nullptr);
    int other = 2;
    number.set(&other);
    EXPECT_EQ(number.get(), &other);
  }).join();
  EXPECT_EQ(number.get(), &value);
}

TEST(FiberLocal, MoreThanThereAreSlotsEndsTheProcess) {
  const auto take = [] {
    for (std::size_t i = 0; i <= std::tuple_size_v<FiberSlots>; ++i) {
      static_cast<void>(detail::take_fiber_slot());
    }
  };
  EXPECT_DEATH(take(),
               "more than " + std::to_string(std::tuple_size_v<FiberSlots>) + " FiberLocals");
}

}  // namespace
}  // namespace smp::base
