// The search against brute force, its starts and its budget.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <limits>

#include "partition/search/strategies.h"
#include "partition/search/synthetic_costs.h"
#include "support/model_families.h"

namespace smp::partitioning {
namespace {

/// Largest cost of a stage, and something for every node that is not with its parent.
Judge priced(const CostTree& tree, int stages, double price) {
  return [&tree, stages, price](const std::vector<int>& placement) {
    std::vector<double> load(stages, 0);
    double crossings = 0;
    for (std::size_t i = 0; i < placement.size(); ++i) {
      load.at(placement[i]) += tree.nodes[i].own;
      if (i > 0) crossings += placement[i] != placement[tree.nodes[i].parent];
    }
    return *std::max_element(load.begin(), load.end()) + price * crossings;
  };
}

double best_of_all(const CostTree& tree, int stages, const Judge& judge) {
  std::vector<int> placement(tree.nodes.size(), 0);
  double best = judge(placement);
  while (true) {
    std::size_t i = 1;
    while (i < placement.size() && ++placement[i] == stages) placement[i++] = 0;
    if (i >= placement.size()) return best;
    best = std::min(best, judge(placement));
  }
}

TEST(Search, ComesNearTheBestPlacementOfSmallTrees) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const CostTree tree = cost_tree(random_model(9, seed));
    for (const int stages : {2, 3}) {
      for (const double price : {0.0, 0.02}) {
        const Judge judge = priced(tree, stages, price);
        const auto found = search_partition(tree, {.stages = stages}, {start_of(tree)}, judge, 200);
        EXPECT_LE(judge(found), 1.06 * best_of_all(tree, stages, judge))
            << "seed " << seed << ", " << stages << " stages, price " << price;
      }
    }
  }
}

TEST(Search, IsNeverWorseThanItsStarts) {
  EXPECT_TRUE(rc::check([] {
    const CostTree tree =
        cost_tree(random_model(*rc::gen::inRange(1, 14), *rc::gen::inRange(0, 1000)));
    const int stages = *rc::gen::inRange(1, 5);
    std::vector<std::vector<int>> starts(2, start_of(tree));
    for (auto& start : starts) {
      for (std::size_t i = 1; i < start.size(); ++i) start[i] = *rc::gen::inRange(0, stages);
    }
    const Judge judge = priced(tree, stages, 0.01);
    const auto found = search_partition(tree, {.stages = stages}, starts, judge, 25);
    for (const auto& start : starts) RC_ASSERT(judge(found) <= judge(start));
    RC_ASSERT(found == search_partition(tree, {.stages = stages}, starts, judge, 25));
  }));
}

TEST(Search, AsksNoMoreOftenThanItMay) {
  const CostTree tree = cost_tree(nested_gpt({}));
  for (const int budget : {1, 2, 10, 50}) {
    int calls = 0;
    const Judge plain = priced(tree, 4, 0.001);
    const Judge counting = [&](const std::vector<int>& stages) {
      ++calls;
      return plain(stages);
    };
    search_partition(tree, {.stages = 4}, {start_of(tree)}, counting, budget);
    EXPECT_LE(calls, budget);
    EXPECT_GE(calls, std::min(budget, 10));
  }
}

TEST(Search, KeepsFixedNodes) {
  const CostTree tree = partly_fixed_t5();
  const std::vector<int> start = start_of(tree);
  const auto stages = search_partition(tree, {.stages = 4}, {start}, priced(tree, 4, 0.001), 200);
  EXPECT_NE(stages, start);
  EXPECT_TRUE(keeps_fixed_nodes(tree, stages));
}

TEST(Search, LeavesWhatCannotFitIfItCan) {
  const CostTree tree = cost_tree(flat_gpt({}));
  const Judge plain = priced(tree, 4, 0.001);
  const Judge strict = [&](const std::vector<int>& stages) {
    const auto on_first = std::count(stages.begin(), stages.end(), 0);
    return on_first > 10 ? std::numeric_limits<double>::infinity() : plain(stages);
  };
  std::vector<int> start(tree.nodes.size(), 1);
  start[0] = 0;
  const auto stages = search_partition(tree, {.stages = 4}, {start_of(tree), start}, strict, 100);
  EXPECT_LE(std::count(stages.begin(), stages.end(), 0), 10);
}

}  // namespace
}  // namespace smp::partitioning
