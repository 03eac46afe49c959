// Processor sharing against cases computed by hand, and one law.
#include "simulate/shared_cores.h"

#include <gtest/gtest.h>

#include <vector>

namespace smp::simulate {
namespace {

struct End {
  int stage;
  base::Nanoseconds at;
  bool operator==(const End&) const = default;
};

/// Stages 0, 1, ... start together.
std::vector<End> ends_of(double cores, const std::vector<base::Nanoseconds>& works) {
  SharedCores shared(cores);
  for (std::size_t stage = 0; stage < works.size(); ++stage) {
    shared.begin(static_cast<int>(stage), works[stage], 0);
  }
  std::vector<End> ends;
  while (!shared.idle()) {
    ends.push_back({shared.next_stage(), shared.next_end()});
    shared.end(ends.back().at);
  }
  return ends;
}

TEST(SharedCores, AreOneEachWhereThereAreEnough) {
  EXPECT_EQ(ends_of(2, {300, 100}), (std::vector<End>{{1, 100}, {0, 300}}));
}

TEST(SharedCores, SlowAllAlikeWhereThereAreNot) {
  // Both at half speed until 200, where the short one is done; then the long one alone.
  EXPECT_EQ(ends_of(1, {300, 100}), (std::vector<End>{{1, 200}, {0, 400}}));
  // Three on two cores.
  EXPECT_EQ(ends_of(2, {200, 200, 200}), (std::vector<End>{{0, 300}, {1, 300}, {2, 300}}));
}

TEST(SharedCores, WhoComesLaterSlowsTheOthers) {
  SharedCores shared(1);
  shared.begin(0, 100, 0);
  EXPECT_EQ(shared.next_end(), 100);
  shared.begin(1, 100, 50);
  EXPECT_EQ(shared.next_stage(), 0);
  EXPECT_EQ(shared.next_end(), 150);
  shared.end(150);
  EXPECT_EQ(shared.next_end(), 200);
}

TEST(SharedCores, CountFromWhenWorkBeginsAfterAPause) {
  SharedCores shared(1);
  shared.begin(0, 10, 0);
  shared.end(10);
  EXPECT_TRUE(shared.idle());
  shared.begin(1, 10, 1000);
  EXPECT_EQ(shared.next_end(), 1010);
}

TEST(SharedCores, DoNeitherMoreNorLessThanTheirWork) {
  for (const double cores : {1.0, 1.5, 2.0, 3.0}) {
    const auto ends = ends_of(cores, {700, 700, 700, 700});
    EXPECT_NEAR(static_cast<double>(ends.back().at), 4 * 700 / cores, 2) << cores << " cores";
  }
}

}  // namespace
}  // namespace smp::simulate
