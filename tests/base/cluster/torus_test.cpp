// Distances and ways on a torus, against a search over its links.
#include "base/cluster/torus.h"

#include <gmock/gmock.h>

#include <deque>
#include <map>
#include <utility>
#include <vector>

namespace smp::base {
namespace torus_test {

using testing::ElementsAre;
using testing::IsEmpty;

const std::vector<std::vector<int>> kSizes{{},     {1},       {2},       {3},          {4},
                                           {4, 4}, {2, 3, 5}, {4, 4, 4}, {1, 7, 1, 2}, {6, 5}};

/// Links from `start` to each device, found by breadth.
std::vector<int> distances_from(int start, const Torus& torus) {
  std::vector<int> links(static_cast<std::size_t>(torus.devices()), -1);
  links[static_cast<std::size_t>(start)] = 0;
  std::deque<int> todo{start};
  for (; !todo.empty(); todo.pop_front()) {
    for (const int next : torus.neighbours(todo.front())) {
      auto& there = links[static_cast<std::size_t>(next)];
      if (there >= 0) continue;
      there = links[static_cast<std::size_t>(todo.front())] + 1;
      todo.push_back(next);
    }
  }
  return links;
}

TEST(Torus, HasTheNeighboursThatNeuronLsShows) {
  const Torus torus({4, 4});
  EXPECT_THAT(torus.neighbours(0), ElementsAre(1, 3, 4, 12));
  EXPECT_THAT(torus.neighbours(1), ElementsAre(0, 2, 5, 13));
  EXPECT_THAT(torus.neighbours(2), ElementsAre(1, 3, 6, 14));
  EXPECT_THAT(torus.neighbours(10), ElementsAre(6, 9, 11, 14));
}

TEST(Torus, SmallRingsHaveFewerNeighbours) {
  EXPECT_EQ(Torus({}).devices(), 1);
  EXPECT_THAT(Torus({}).neighbours(0), IsEmpty());
  EXPECT_THAT(Torus({1}).neighbours(0), IsEmpty());
  EXPECT_THAT(Torus({2}).neighbours(0), ElementsAre(1));
  EXPECT_THAT(Torus({4, 4, 4}).neighbours(0), ElementsAre(1, 3, 4, 12, 16, 48));
}

TEST(Torus, DistancesAreThoseOfASearchOverItsLinks) {
  for (const auto& sizes : kSizes) {
    const Torus torus(sizes);
    for (int from = 0; from < torus.devices(); ++from) {
      const auto links = distances_from(from, torus);
      for (int to = 0; to < torus.devices(); ++to) {
        ASSERT_EQ(torus.distance(from, to), links[static_cast<std::size_t>(to)])
            << from << " to " << to << " of " << torus.devices();
        ASSERT_EQ(torus.distance(from, to), torus.distance(to, from));
      }
    }
  }
}

/// Of a ring of n the mean over all, oneself too, is n / 4 if n is even, else (n - 1 / n) / 4.
TEST(Torus, TheMeanDistanceIsThatOfItsRings) {
  for (const auto& sizes : kSizes) {
    const Torus torus(sizes);
    double mean = 0, expected = 0;
    for (int to = 0; to < torus.devices(); ++to) mean += torus.distance(0, to);
    for (const double n : sizes) {
      expected += (static_cast<int>(n) % 2 == 0 ? n : n - 1 / n) / 4;
    }
    EXPECT_NEAR(mean / torus.devices(), expected, 1e-12);
  }
}

TEST(Torus, WaysAreShortAndGoOverLinks) {
  for (const auto& sizes : kSizes) {
    const Torus torus(sizes);
    for (int from = 0; from < torus.devices(); ++from) {
      for (int to = 0; to < torus.devices(); ++to) {
        const auto hops = torus.route(from, to);
        ASSERT_EQ(static_cast<int>(hops.size()), torus.distance(from, to));
        int at = from;
        for (const auto& hop : hops) {
          ASSERT_EQ(hop.from, at);
          ASSERT_THAT(torus.neighbours(at), testing::Contains(hop.to));
          ASSERT_LT(hop.dimension, static_cast<int>(sizes.size()));
          at = hop.to;
        }
        ASSERT_EQ(at, to);
      }
    }
  }
}

/// With rings of four, where two ways to the device opposite are equally short.
TEST(Torus, AllToAllLoadsEveryLinkAlike) {
  for (const auto& sizes : {std::vector<int>{4}, {4, 4}, {4, 4, 4}}) {
    const Torus torus(sizes);
    std::map<std::pair<int, int>, int> passes;
    for (int from = 0; from < torus.devices(); ++from) {
      for (int to = 0; to < torus.devices(); ++to) {
        for (const auto& hop : torus.route(from, to)) ++passes[{hop.from, hop.to}];
      }
    }
    EXPECT_EQ(passes.size(), 2 * sizes.size() * static_cast<std::size_t>(torus.devices()))
        << "every link, both ways";
    for (const auto& [link, count] : passes) {
      EXPECT_EQ(count, torus.devices() / 2) << link.first << " to " << link.second;
    }
  }
}

}  // namespace torus_test
}  // namespace smp::base
