// How far roots and quotients are off, over all magnitudes.
#include "precision/root_and_quotient.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace smp::precision {
namespace {

constexpr double kOff = 1.5e-7;

/// Some thousand numbers between powers of two, from 2^least to 2^most.
template <class Action>
void each_number(int least, int most, Action&& action) {
  for (int power = least; power < most; ++power) {
    for (int i = 0; i < 64; ++i) action(std::ldexp(1.0f + static_cast<float>(i) / 64.3f, power));
  }
}

TEST(RootAndQuotient, RootsAreNearTheTrueOnes) {
  double worst = 0;
  each_number(-122, 127, [&](float x) {
    const double due = std::sqrt(static_cast<double>(x));
    worst = std::max(worst, std::abs(root_of(x) / due - 1));
  });
  EXPECT_LT(worst, kOff);
  EXPECT_EQ(root_of(0.0f), 0.0f);
  each_number(-149, -122, [&](float x) {
    EXPECT_GE(root_of(x), 0.0f);
    EXPECT_LE(root_of(x), std::sqrt(x) * (1 + kOff));
  });
  const auto largest = std::numeric_limits<float>::max();
  EXPECT_NEAR(root_of(std::numeric_limits<float>::infinity()) / std::sqrt(largest), 1, kOff);
  EXPECT_TRUE(std::isnan(root_of(std::nanf(""))));
}

TEST(RootAndQuotient, QuotientsAreNearTheTrueOnes) {
  double worst = 0;
  for (const float a : {1.0f, -3.1415927f, 1e-20f, 7e18f}) {
    each_number(-122, 122, [&](float b) {
      const double due = static_cast<double>(a) / b;
      if (std::abs(due) < 1e-36 || std::abs(due) > 1e38) return;
      worst = std::max(worst, std::abs(quotient_of(a, b) / due - 1));
    });
  }
  EXPECT_LT(worst, kOff);
  EXPECT_EQ(quotient_of(0.0f, 1e-8f), 0.0f);
  EXPECT_TRUE(std::isinf(quotient_of(std::numeric_limits<float>::infinity(), 2.0f)) ||
              std::isnan(quotient_of(std::numeric_limits<float>::infinity(), 2.0f)));
  EXPECT_TRUE(std::isnan(quotient_of(std::nanf(""), 2.0f)));
}

}  // namespace
}  // namespace smp::precision
