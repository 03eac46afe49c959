// A random order without memory.
#include "data/order/permutation.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <map>
#include <vector>

#include "data/order/position.h"

namespace smp::data {
namespace {

TEST(Permutation, HasEveryNumberOnceForEverySize) {
  for (std::int64_t size = 1; size <= 3000; ++size) {
    const Permutation permutation(size, static_cast<std::uint64_t>(size) * 77);
    std::vector<bool> seen(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) {
      const auto number = permutation(i);
      ASSERT_TRUE(number >= 0 && number < size) << number << " of " << size;
      ASSERT_FALSE(seen[static_cast<std::size_t>(number)]) << number << " twice of " << size;
      seen[static_cast<std::size_t>(number)] = true;
    }
  }
}

TEST(Permutation, TakesHugeSizes) {
  const std::int64_t size = (std::int64_t{1} << 50) + 12345;
  const Permutation permutation(size, 3);
  for (std::int64_t i = size - 1000; i < size; ++i) {
    EXPECT_TRUE(permutation(i) >= 0 && permutation(i) < size);
  }
}

// Pearson's test of all 24 orders of four documents, over as many keys as epochs could have.
TEST(Permutation, OrdersOfFewAreEquallyLikely) {
  constexpr int kKeys = 24'000;
  std::map<std::array<std::int64_t, 4>, int> counts;
  for (std::uint64_t key = 0; key < kKeys; ++key) {
    const Permutation permutation(4, key);
    ++counts[{permutation(0), permutation(1), permutation(2), permutation(3)}];
  }
  ASSERT_EQ(counts.size(), 24);
  double squares = 0;
  for (const auto& [order, count] : counts) squares += (count - 1000.) * (count - 1000.) / 1000;
  EXPECT_LT(squares, 55);  // 23 degrees of freedom: exceeded once in 5,000 such tests
}

// Neighbours are about size / 3 apart, as in a shuffled deck, and the order begins anywhere.
TEST(Permutation, NeighboursDoNotStayTogether) {
  constexpr std::int64_t kSize = 5000;
  double apart = 0;
  double first = 0;
  for (std::uint64_t key = 0; key < 100; ++key) {
    const Permutation permutation(kSize, key);
    for (std::int64_t i = 1; i < kSize; ++i) {
      apart += static_cast<double>(std::abs(permutation(i) - permutation(i - 1)));
    }
    first += static_cast<double>(permutation(0));
  }
  EXPECT_NEAR(apart / (100. * (kSize - 1)), kSize / 3., kSize * 0.01);
  EXPECT_NEAR(first / 100, kSize / 2., kSize * 0.12);
}

TEST(DocumentOrder, IsAnotherEveryEpoch) {
  const DocumentOrder order(100, /*shuffle=*/true, 5);
  const DocumentOrder same(100, true, 5);
  const DocumentOrder other_seed(100, true, 6);
  int as_before = 0;
  int as_of_other_seed = 0;
  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(order.document(3, i), same.document(3, i));
    as_before += order.document(0, i) == order.document(1, i);
    as_of_other_seed += order.document(0, i) == other_seed.document(0, i);
  }
  EXPECT_LT(as_before, 10);
  EXPECT_LT(as_of_other_seed, 10);
  EXPECT_EQ(DocumentOrder(100, /*shuffle=*/false, 5).document(7, 42), 42);
}

}  // namespace
}  // namespace smp::data
