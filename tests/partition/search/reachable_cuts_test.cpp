// Reach under a bound, against every way to cut.
#include "partition/search/reachable_cuts.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <cmath>
#include <set>

namespace smp::partitioning {
namespace {

struct Row {
  std::vector<double> weights;
  std::vector<Bin> bins;
};

Row random_row() {
  Row row;
  for (int i = *rc::gen::inRange(0, 11); i > 0; --i) {
    row.weights.push_back(*rc::gen::inRange(0, 12));
  }
  row.bins.resize(*rc::gen::inRange<std::size_t>(1, 5));
  for (Bin& bin : row.bins) {
    bin = {1.0 * *rc::gen::inRange(0, 8), std::exp2(*rc::gen::inRange(0, 3)),
           *rc::gen::arbitrary<bool>()};
  }
  return row;
}

// Where the first bins can end, by trying every segment of each.
std::vector<std::set<int>> ends_by_trying(const Row& row, double bound) {
  std::vector<std::set<int>> ends{{0}};
  for (const Bin& bin : row.bins) {
    ends.emplace_back();
    for (const int start : ends[ends.size() - 2]) {
      double segment = 0;
      for (int end = start; end <= static_cast<int>(row.weights.size()); ++end) {
        if (end > start) segment += row.weights[end - 1];
        if (bin.level(segment) > bound) break;
        if (end > start || !bin.needs_one) ends.back().insert(end);
      }
    }
  }
  return ends;
}

std::set<int> listed(const std::vector<CutRange>& ranges) {
  std::set<int> ends;
  for (const auto [first, last] : ranges) {
    for (int end = first; end <= last; ++end) ends.insert(end);
  }
  return ends;
}

TEST(ReachableCuts, AreThoseThatTryingFinds) {
  const bool holds = rc::check([] {
    const Row row = random_row();
    const double bound = *rc::gen::inRange(0, 80) / 4.0;
    const ReachableCuts cuts(row.weights, row.bins);
    const auto expected = ends_by_trying(row, bound);
    const auto found = cuts.reach(bound);
    RC_ASSERT(found.size() == expected.size());
    for (std::size_t b = 0; b < found.size(); ++b) RC_ASSERT(listed(found[b]) == expected[b]);
    RC_ASSERT(cuts.feasible(bound) == expected.back().contains(cuts.elements()));
  });
  EXPECT_TRUE(holds);
}

// All sums here are quarters, so the next lower bound that could matter is a quarter below.
TEST(ReachableCuts, FindTheLeastBoundThatIsFeasible) {
  const bool holds = rc::check([] {
    const Row row = random_row();
    const double least = ReachableCuts(row.weights, row.bins).least_bound();
    const auto fits = [&](double bound) {
      return ends_by_trying(row, bound).back().contains(static_cast<int>(row.weights.size()));
    };
    if (std::isinf(least)) {
      RC_ASSERT(!fits(1e6));
      return;
    }
    RC_ASSERT(fits(least) && !fits(least - 0.125));
    RC_ASSERT(least * 4 == std::round(least * 4));
  });
  EXPECT_TRUE(holds);
}

TEST(ReachableCuts, StartASegmentAsEarlyAsItFits) {
  const std::vector<Bin> bins{Bin{1, 2}};
  const ReachableCuts cuts({3, 1, 4, 1}, bins);
  EXPECT_EQ(cuts.earliest_start(bins[0], 4, 3), 2);  // (1 + 4 + 1) / 2
  EXPECT_EQ(cuts.furthest_end(bins[0], 0, 3), 2);    // (1 + 3 + 1) / 2
  EXPECT_EQ(cuts.earliest_start(bins[0], 4, 0.25), 5);
  EXPECT_EQ(cuts.furthest_end(bins[0], 2, 0.25), 1);
}

}  // namespace
}  // namespace smp::partitioning
