// The cut of a sequence against all cuts there are.
#include "partition/segmentation.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <algorithm>
#include <numeric>

namespace smp::partition {
namespace {

using testing::ElementsAre;
using Weights = std::vector<std::int64_t>;

struct Score {
  double largest = 0;
  double squares = 0;
  friend auto operator<=>(const Score&, const Score&) = default;
};

Score score(const Weights& weights, const std::vector<Bin>& bins, const std::vector<int>& sizes) {
  Score result;
  auto at = weights.begin();
  for (std::size_t b = 0; b < bins.size(); ++b) {
    const double load = static_cast<double>(std::accumulate(at, at + sizes[b], bins[b].load));
    at += sizes[b];
    result.largest = std::max(result.largest, load);
    result.squares += load * load;
  }
  return result;
}

// The best score of all cuts, by trying each.
std::optional<Score> brute_force(const Weights& weights, const std::vector<Bin>& bins,
                                 std::vector<int> sizes = {}) {
  const int left =
      static_cast<int>(weights.size()) - std::accumulate(sizes.begin(), sizes.end(), 0);
  if (sizes.size() == bins.size()) {
    return left == 0 ? std::optional(score(weights, bins, sizes)) : std::nullopt;
  }
  std::optional<Score> best;
  for (int size = bins[sizes.size()].needs_one ? 1 : 0; size <= left; ++size) {
    auto longer = sizes;
    longer.push_back(size);
    const auto found = brute_force(weights, bins, longer);
    if (found && (!best || *found < *best)) best = found;
  }
  return best;
}

TEST(Segmentation, BalancesWithoutChangingTheOrder) {
  EXPECT_THAT(*min_max_segments({4, 1, 1, 1, 1, 4}, {Bin{}, Bin{}, Bin{}}), ElementsAre(1, 4, 1));
}

TEST(Segmentation, CountsWhatABinCarriesAlready) {
  EXPECT_THAT(*min_max_segments({1, 1, 1, 1}, {Bin{2}, Bin{0}}), ElementsAre(1, 3));
}

TEST(Segmentation, PrefersEqualLoadsAmongTheCutsWithTheLeastMaximum) {
  EXPECT_THAT(*min_max_segments({9, 1, 1, 1, 1}, {Bin{}, Bin{}, Bin{}}), ElementsAre(1, 2, 2));
}

TEST(Segmentation, LeavesABinEmptyOnlyIfItMay) {
  EXPECT_THAT(*min_max_segments({5}, {Bin{7, false}, Bin{0, true}}), ElementsAre(0, 1));
  EXPECT_FALSE(min_max_segments({5}, {Bin{}, Bin{}}));
  EXPECT_THAT(*min_max_segments({}, {Bin{1, false}}), ElementsAre(0));
}

TEST(Segmentation, SpreadsWeightlessElements) {
  EXPECT_THAT(*min_max_segments({1, 1, 1, 1, 1, 1, 1, 1}, {Bin{}, Bin{}, Bin{}, Bin{}}),
              ElementsAre(2, 2, 2, 2));
}

TEST(Segmentation, EqualsTheBestOfAllCuts) {
  const bool holds = rc::check([] {
    const auto weights =
        *rc::gen::resize(8, rc::gen::container<Weights>(rc::gen::inRange<std::int64_t>(0, 20)));
    std::vector<Bin> bins(*rc::gen::inRange<std::size_t>(1, 5));
    for (Bin& bin : bins) {
      bin = {*rc::gen::inRange<std::int64_t>(0, 10), *rc::gen::arbitrary<bool>()};
    }
    const auto sizes = min_max_segments(weights, bins);
    const auto best = brute_force(weights, bins);
    RC_ASSERT(sizes.has_value() == best.has_value());
    if (sizes) RC_ASSERT(score(weights, bins, *sizes) == *best);
  });
  EXPECT_TRUE(holds);
}

}  // namespace
}  // namespace smp::partition
