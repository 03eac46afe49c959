// Things made ahead, in order.
#include "data/loading/ahead.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <stdexcept>
#include <string>

namespace smp::data {
namespace {

using std::chrono::milliseconds;

TEST(Ahead, HandsOutInOrderWhoeverIsFaster) {
  for (const int threads : {1, 2, 5}) {
    Ahead<int> numbers(threads, 3, [](std::int64_t number) -> std::optional<int> {
      if (number == 100) return std::nullopt;
      if (number % 7 == 0) std::this_thread::sleep_for(milliseconds(1));
      return static_cast<int>(number) * 2;
    });
    for (int i = 0; i < 100; ++i) EXPECT_EQ(numbers.take().thing, i * 2);
    EXPECT_EQ(numbers.take().thing, std::nullopt);
    EXPECT_EQ(numbers.take().thing, std::nullopt);
  }
}

TEST(Ahead, MakesNoMoreThanIsAllowed) {
  std::atomic<int> made = 0;
  Ahead<int> numbers(3, 4, [&](std::int64_t) { return ++made; });
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(made, 4);
  (void)numbers.take();
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(made, 5);
}

TEST(Ahead, ThrowsWhereTheThingWouldBe) {
  Ahead<int> numbers(2, 8, [](std::int64_t number) -> std::optional<int> {
    if (number >= 5) throw std::runtime_error(std::to_string(number));
    return 1;
  });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(numbers.take().thing, 1);
  for (int i = 0; i < 2; ++i) {  // again, whenever it is asked
    try {
      (void)numbers.take();
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "5");
    }
  }
}

TEST(Ahead, WaitsNoLongerThanAllowed) {
  std::atomic<bool> go = false;
  Ahead<int> numbers(1, 1, [&](std::int64_t) {
    while (!go) std::this_thread::sleep_for(milliseconds(1));
    return 3;
  });
  EXPECT_FALSE(numbers.take(0.02).in_time);
  EXPECT_EQ(numbers.next(), 0);
  go = true;
  EXPECT_EQ(numbers.take().thing, 3);
}

TEST(Ahead, WaitsForEver) {
  for (const double seconds : {1e12, std::numeric_limits<double>::infinity()}) {
    Ahead<int> numbers(1, 1, [&](std::int64_t) {
      std::this_thread::sleep_for(milliseconds(20));
      return 3;
    });
    EXPECT_EQ(numbers.take(seconds).thing, 3) << seconds << " s do not fit into nanoseconds";
  }
}

TEST(Ahead, StopsWhoWaits) {
  std::atomic<bool> go = false;
  Ahead<int> numbers(1, 1, [&](std::int64_t) {
    while (!go) std::this_thread::sleep_for(milliseconds(1));
    return 3;
  });
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(20));
    numbers.stop();
  });
  EXPECT_THROW((void)numbers.take(), AheadStopped);
  go = true;
  other.join();
}

}  // namespace
}  // namespace smp::data
