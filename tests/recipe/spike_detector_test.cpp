// Spikes of a number over steps.
#include "smp/recipe/spike_detector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <limits>
#include <random>

#include "support/refusal.h"

namespace smp {
namespace {

using testing::HasSubstr;

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

SpikeDetector at_level(double level, int steps = 20) {
  SpikeDetector detector;
  for (int i = 0; i < steps; ++i) detector.observe(level);
  return detector;
}

TEST(SpikeDetector, KnowsNoLevelBeforeTwentySteps) {
  auto detector = at_level(0.5, 19);
  EXPECT_TRUE(std::isnan(detector.level()));
  EXPECT_FALSE(detector.observe(9));
  EXPECT_EQ(detector.spikes(), 0);
  EXPECT_DOUBLE_EQ(detector.level(), (19 * 0.5 + 9) / 20);
}

TEST(SpikeDetector, IsStrictAboutTheThreshold) {
  auto detector = at_level(0.5);
  EXPECT_FALSE(detector.observe(0.6));   // not above r + 0.1
  EXPECT_TRUE(detector.observe(0.606));  // r is 0.505 now
  EXPECT_EQ(detector.running(), 1);
  EXPECT_FALSE(detector.observe(0.5));
  EXPECT_THAT(detector.ended(), ElementsAre(Pair(1, 1)));
  EXPECT_EQ(detector.recovered_in_one_step(), 1);
}

TEST(SpikeDetector, CountsHowLongTheyLast) {
  auto detector = at_level(0.2);
  for (const double value : {1.0, 0.2, 1.0, 0.9, 1.0, 0.2, 0.8, 0.2, 0.7}) detector.observe(value);
  EXPECT_THAT(detector.ended(), ElementsAre(Pair(1, 2), Pair(3, 1)));
  EXPECT_EQ(detector.running(), 1);
  EXPECT_EQ(detector.spikes(), 4);
  EXPECT_DOUBLE_EQ(detector.recovered_in_one_step(), 2.0 / 3);
}

/// The mean rises with the values, so a new level ends the spike.
TEST(SpikeDetector, GetsUsedToALevelThatStays) {
  auto detector = at_level(0.2);
  int steps = 0;
  while (detector.observe(1.0)) ++steps;
  EXPECT_EQ(steps, 18);  // 0.2 + 18 * 0.8 / 20 = 0.92, and 1 is no more above 0.92 + 0.1
  EXPECT_THAT(detector.ended(), ElementsAre(Pair(18, 1)));
}

TEST(SpikeDetector, TakesInfinitiesForSpikesAndNotForNumbers) {
  auto detector = at_level(0.2);
  EXPECT_TRUE(detector.observe(kNan));
  EXPECT_TRUE(detector.observe(std::numeric_limits<double>::infinity()));
  EXPECT_DOUBLE_EQ(detector.level(), 0.2);
  EXPECT_FALSE(detector.observe(0.2));
  EXPECT_THAT(detector.ended(), ElementsAre(Pair(2, 1)));
}

/// By brute force, and by a detector that is stopped and goes on at every step.
TEST(SpikeDetector, EqualsTheDefinitionOnRandomWalks) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    std::normal_distribution<double> noise(1.0, 0.08);
    std::vector<double> values;
    SpikeDetector detector({.window = 5, .threshold = 0.1});
    std::int64_t spikes = 0;
    bool was_spike = false;
    for (int step = 0; step < 200; ++step) {
      const double value = noise(random);
      double sum = 0;
      for (int back = 1; back <= 5 && back <= step; ++back) sum += values[step - back];
      const bool expected = step >= 5 && value > sum / 5 + 0.1;
      spikes += expected && !was_spike;
      was_spike = expected;
      SpikeDetector resumed({.window = 5, .threshold = 0.1});
      resumed.load_state_dict(detector.state_dict());
      EXPECT_EQ(detector.observe(value), expected) << seed << ' ' << step;
      resumed.observe(value);
      EXPECT_EQ(resumed.spikes(), detector.spikes());
      EXPECT_EQ(resumed.ended(), detector.ended());
      values.push_back(value);
    }
    EXPECT_EQ(detector.spikes(), spikes);
    EXPECT_GT(spikes, 3);
  }
}

TEST(SpikeDetector, KeepsTheLastValuesOfALongerWindow) {
  SpikeDetector shorter({.window = 2});
  shorter.load_state_dict(at_level(0.5).state_dict());
  EXPECT_DOUBLE_EQ(shorter.level(), 0.5);
  shorter.observe(0.7);
  EXPECT_DOUBLE_EQ(shorter.level(), 0.6);
}

TEST(SpikeDetector, RefusesAnEmptyWindow) {
  EXPECT_THAT(refusal([] { SpikeDetector({.window = 0}); }), HasSubstr("0 steps"));
  EXPECT_THAT(refusal([] { SpikeDetector({.threshold = -1}); }), HasSubstr("-1"));
  SpikeDetector detector;
  EXPECT_THAT(refusal([&] { detector.load_state_dict({}); }), HasSubstr("values"));
  EXPECT_THAT(detector.ended(), IsEmpty());
  EXPECT_TRUE(std::isnan(detector.recovered_in_one_step()));
}

}  // namespace
}  // namespace smp
