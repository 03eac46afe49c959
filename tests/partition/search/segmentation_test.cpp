// The cut of a sequence against all cuts there are.
#include "partition/search/segmentation.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <algorithm>
#include <numeric>

namespace smp::partitioning {
namespace {

using testing::ElementsAre;
using Weights = std::vector<double>;

struct Score {
  double highest = 0;
  double penalty = 0;
  double unevenness = 0;
};

Score score(const Weights& weights, const std::vector<Bin>& bins, const std::vector<int>& penalties,
            const std::vector<int>& sizes) {
  Score result;
  std::size_t start = 0;
  for (std::size_t b = 0; b < bins.size(); ++b) {
    if (b > 0 && start < penalties.size()) result.penalty += penalties[start];
    const auto from = weights.begin() + static_cast<std::ptrdiff_t>(start);
    const double segment = std::accumulate(from, from + sizes[b], 0.0);
    start += static_cast<std::size_t>(sizes[b]);
    result.highest = std::max(result.highest, bins[b].level(segment));
    result.unevenness += bins[b].level(segment) * (bins[b].load + segment);
  }
  return result;
}

// All cuts that give an element to every bin that needs one.
void all_cuts(int left, const std::vector<Bin>& bins, std::vector<int>& sizes,
              std::vector<std::vector<int>>& found) {
  if (sizes.size() == bins.size()) {
    if (left == 0) found.push_back(sizes);
    return;
  }
  for (int size = bins[sizes.size()].needs_one ? 1 : 0; size <= left; ++size) {
    sizes.push_back(size);
    all_cuts(left - size, bins, sizes, found);
    sizes.pop_back();
  }
}

// The best score by trying each cut.
std::optional<Score> brute_force(const Weights& weights, const std::vector<Bin>& bins,
                                 const std::vector<int>& penalties, double slack) {
  std::vector<int> sizes;
  std::vector<std::vector<int>> cuts;
  all_cuts(static_cast<int>(weights.size()), bins, sizes, cuts);
  if (cuts.empty()) return std::nullopt;
  std::vector<Score> scores;
  for (const auto& cut : cuts) scores.push_back(score(weights, bins, penalties, cut));
  const auto highest = [](const Score& a, const Score& b) { return a.highest < b.highest; };
  const double bound = std::ranges::min_element(scores, highest)->highest * (1 + slack);
  std::erase_if(scores, [&](const Score& s) { return s.highest > bound + 1e-9; });
  return *std::ranges::min_element(scores, [](const Score& a, const Score& b) {
    return std::pair(a.penalty, a.unevenness) < std::pair(b.penalty, b.unevenness);
  });
}

TEST(Segmentation, BalancesWithoutChangingTheOrder) {
  EXPECT_THAT(*min_max_segments({4, 1, 1, 1, 1, 4}, {Bin{}, Bin{}, Bin{}}), ElementsAre(1, 4, 1));
}

TEST(Segmentation, CountsWhatABinCarriesAlready) {
  EXPECT_THAT(*min_max_segments({1, 1, 1, 1}, {Bin{2}, Bin{0}}), ElementsAre(1, 3));
}

TEST(Segmentation, GivesAFasterBinMore) {
  EXPECT_THAT(*min_max_segments({1, 1, 1, 1, 1, 1}, {Bin{0, 1}, Bin{0, 2}}), ElementsAre(2, 4));
}

TEST(Segmentation, PrefersEqualLoadsAmongTheCutsWithTheLeastMaximum) {
  EXPECT_THAT(*min_max_segments({9, 1, 1, 1, 1}, {Bin{}, Bin{}, Bin{}}), ElementsAre(1, 2, 2));
}

TEST(Segmentation, PrefersCutsWithoutPenaltyToEqualLoads) {
  EXPECT_THAT(*min_max_segments({9, 1, 1, 1, 1}, {Bin{}, Bin{}, Bin{}}, {1, 1, 1, 2, 1}),
              ElementsAre(1, 1, 3));
}

TEST(Segmentation, RaisesTheMaximumOnlyWithinTheSlack) {
  const Weights weights{1, 1, 1, 1};
  EXPECT_THAT(*min_max_segments(weights, {Bin{}, Bin{}}, {0, 9, 9, 1}, 0.4), ElementsAre(2, 2));
  EXPECT_THAT(*min_max_segments(weights, {Bin{}, Bin{}}, {0, 9, 9, 1}, 0.5), ElementsAre(3, 1));
}

TEST(Segmentation, LeavesABinEmptyOnlyIfItMay) {
  EXPECT_THAT(*min_max_segments({5}, {Bin{7, 1, false}, Bin{0, 1, true}}), ElementsAre(0, 1));
  EXPECT_FALSE(min_max_segments({5}, {Bin{}, Bin{}}));
  EXPECT_THAT(*min_max_segments({}, {Bin{1, 1, false}}), ElementsAre(0));
}

TEST(Segmentation, ReachesPastAnElementThatIsTooLargeForTheNextBin) {
  // The middle bin needs an element but has no room for the 9: the first one must leave it a 1.
  EXPECT_THAT(*min_max_segments({1, 1, 9}, {Bin{0, 9}, Bin{8, 1}, Bin{0, 1}}),
              ElementsAre(1, 1, 1));
}

TEST(Segmentation, SpreadsWeightlessElementsOverAllBins) {
  const auto sizes = min_max_segments({0, 0, 0, 0, 0}, {Bin{}, Bin{}, Bin{}, Bin{}});
  EXPECT_THAT(*sizes, testing::Each(testing::Ge(1)));
}

TEST(Segmentation, EqualsTheBestOfAllCuts) {
  const bool holds = rc::check([] {
    const int count = *rc::gen::inRange(0, 11);
    const auto number = [](int below) { return *rc::gen::inRange(0, below); };
    Weights weights(count);
    std::vector<int> penalties(count);
    for (int i = 0; i < count; ++i) {
      weights[i] = number(20);
      penalties[i] = number(3);
    }
    std::vector<Bin> bins(*rc::gen::inRange<std::size_t>(1, 5));
    for (Bin& bin : bins) {
      bin = {1.0 * number(10), std::exp2(number(3)), *rc::gen::arbitrary<bool>()};
    }
    const double slack = number(3) / 4.0;
    const auto sizes = min_max_segments(weights, bins, penalties, slack);
    const auto best = brute_force(weights, bins, penalties, slack);
    RC_ASSERT(sizes.has_value() == best.has_value());
    if (!sizes) return;
    const Score found = score(weights, bins, penalties, *sizes);
    RC_ASSERT(found.penalty == best->penalty);
    RC_ASSERT(found.unevenness == best->unevenness);
  });
  EXPECT_TRUE(holds);
}

TEST(Segmentation, HoldsItsBoundForTenThousandElements) {
  Weights weights;
  for (int i = 0; i < 10'000; ++i) weights.push_back(1 + i * 7919 % 1000);
  const std::vector<Bin> bins(1024);
  const auto sizes = *min_max_segments(weights, bins, std::vector<int>(weights.size(), 1));
  EXPECT_THAT(sizes, testing::Each(testing::Ge(1)));
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double highest = score(weights, bins, {}, sizes).highest;
  EXPECT_LT(highest, total / 1024 + 1000);  // what taking elements until the mean is passed gives
  EXPECT_GT(highest, total / 1024);
}

}  // namespace
}  // namespace smp::partitioning
