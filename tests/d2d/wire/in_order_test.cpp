// Numbered things go on in the order of their numbers, each once.
#include "d2d/wire/in_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

namespace smp::d2d {
namespace in_order_test {

TEST(InOrder, GivesBackInTheOrderOfTheirNumbers) {
  std::vector<int> numbers(1'000);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937(3));
  InOrder<std::unique_ptr<int>> in_order;
  std::vector<int> taken;
  for (const int number : numbers) {
    EXPECT_TRUE(in_order.put(static_cast<std::uint64_t>(number), std::make_unique<int>(number)));
    while (auto next = in_order.take()) taken.push_back(**next);
  }
  std::sort(numbers.begin(), numbers.end());
  EXPECT_EQ(taken, numbers);
  EXPECT_FALSE(in_order.ready());
  EXPECT_EQ(in_order.next(), 1'000);
}

TEST(InOrder, WaitsForTheNextOne) {
  InOrder<int> in_order;
  EXPECT_TRUE(in_order.put(1, 11));
  EXPECT_FALSE(in_order.ready());
  EXPECT_EQ(in_order.take(), std::nullopt);
  EXPECT_TRUE(in_order.put(0, 10));
  EXPECT_TRUE(in_order.ready());
  EXPECT_EQ(in_order.front(), 10);
  EXPECT_EQ(in_order.take(), 10);
  EXPECT_EQ(in_order.take(), 11);
}

TEST(InOrder, LetsTheNextOnePass) {
  InOrder<int> in_order;
  EXPECT_TRUE(in_order.pass(0));
  EXPECT_FALSE(in_order.pass(2));
  EXPECT_TRUE(in_order.put(2, 12));
  EXPECT_TRUE(in_order.pass(1));
  EXPECT_EQ(in_order.take(), 12);
  EXPECT_EQ(in_order.next(), 3);
}

TEST(InOrder, RefusesWhatHasBeenThereOrIsFarAhead) {
  InOrder<int> in_order;
  EXPECT_TRUE(in_order.put(0, 1));
  EXPECT_FALSE(in_order.put(0, 2)) << "it waits";
  EXPECT_EQ(in_order.take(), 1);
  EXPECT_FALSE(in_order.put(0, 2)) << "it was taken";
  EXPECT_TRUE(in_order.put(InOrder<int>::kFarthest, 3));
  EXPECT_FALSE(in_order.put(InOrder<int>::kFarthest + 1, 4));
}

}  // namespace in_order_test
}  // namespace smp::d2d
