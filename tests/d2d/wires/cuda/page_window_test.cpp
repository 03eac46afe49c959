// d2d/wires/page_window_test.cpp: what a window lends is lent once, and all of it comes back.
#include "d2d/wires/cuda/page_window.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <utility>

#include "smp/error.h"

namespace smp::d2d {
namespace {

TEST(PageWindow, LendsRunsOneBehindTheOther) {
  PageWindow window(8);
  EXPECT_EQ(window.take(3), 0U);
  EXPECT_EQ(window.take(3), 3U);
  EXPECT_EQ(window.take(3), std::nullopt) << "only two are left";
  EXPECT_EQ(window.take(2), 6U);
  EXPECT_EQ(window.take(1), std::nullopt);
  EXPECT_EQ(window.free_pages(), 0U);
  window.give_back(3, 3);
  EXPECT_EQ(window.take(2), 3U);
}

TEST(PageWindow, FindsARunThatLiesAcrossTheEndOfTheLastSearch) {
  PageWindow window(8);
  ASSERT_EQ(window.take(4), 0U);
  window.give_back(0, 4);
  EXPECT_EQ(window.take(6), 0U) << "4 to 7 are too few, and 0 to 5 begin before the search did";
}

TEST(PageWindow, LendsTheWholeWindowAndNoMore) {
  PageWindow window(4);
  EXPECT_THROW(static_cast<void>(window.take(5)), InternalError);
  EXPECT_EQ(window.take(4), 0U);
}

TEST(PageWindow, RefusesPagesThatItDidNotLend) {
  PageWindow window(8);
  ASSERT_EQ(window.take(2), 0U);
  EXPECT_THROW(window.give_back(1, 2), InternalError);
  EXPECT_THROW(window.give_back(7, 2), InternalError);
  window.give_back(0, 2);
  EXPECT_THROW(window.give_back(0, 2), InternalError) << "twice";
}

TEST(PageWindow, KeepsEveryPageInOneHandInRandomOrders) {
  std::mt19937_64 random(1);
  PageWindow window(64);
  std::vector<std::pair<std::uint32_t, std::uint32_t>> lent;
  std::vector<bool> taken(64);
  for (int i = 0; i < 100'000; ++i) {
    const auto count = static_cast<std::uint32_t>(1 + random() % 12);
    if (random() % 2 == 0) {
      const auto first = window.take(count);
      for (std::uint32_t p = 0; first && p < count; ++p) {
        ASSERT_FALSE(taken[*first + p]) << "page " << *first + p << " is lent twice";
        taken[*first + p] = true;
      }
      if (first) lent.emplace_back(*first, count);
    } else if (!lent.empty()) {
      std::swap(lent[random() % lent.size()], lent.back());
      const auto [first, pages] = lent.back();
      lent.pop_back();
      window.give_back(first, pages);
      for (std::uint32_t p = 0; p < pages; ++p) taken[first + p] = false;
    }
  }
  for (const auto& [first, pages] : lent) window.give_back(first, pages);
  EXPECT_EQ(window.free_pages(), 64U);
  EXPECT_EQ(window.take(64), 0U) << "no page is lost, whatever the order";
}

}  // namespace
}  // namespace smp::d2d
