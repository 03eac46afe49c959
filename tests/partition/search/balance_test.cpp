// Loads are even afterwards, and what must stay stays.
#include "partition/search/balance.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "partition/search/synthetic_costs.h"
#include "support/model_families.h"

namespace smp::partitioning {
namespace {

template <class Weight>
double worst_over_even(const CostTree& tree, const std::vector<int>& stages, int count,
                       Weight weight) {
  std::vector<double> load(count, 0);
  double total = 0, largest = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    load.at(stages[i]) += weight(tree.nodes[i]);
    total += weight(tree.nodes[i]);
    largest = std::max(largest, weight(tree.nodes[i]));
  }
  return *std::max_element(load.begin(), load.end()) / std::max(total / count, largest);
}

int crossings(const CostTree& tree, const std::vector<int>& stages) {
  int count = 0;
  for (std::size_t i = 1; i < stages.size(); ++i) {
    count += stages[i] != stages[tree.nodes[i].parent];
  }
  return count;
}

TEST(Balance, EvensOutCostAndSecondsAlike) {
  for (const std::string& family : family_names()) {
    for (const int stages : {2, 4, 8}) {
      const CostTree tree = cost_tree(family_member(family, 5));
      const auto found = balanced(tree, {.stages = stages}, start_of(tree));
      // In a U-Net the stages with the weights are not those with the work.
      const double near = family == "unet" ? 1.2 : 1.06;
      const auto label = family + " on " + std::to_string(stages);
      EXPECT_LE(worst_over_even(tree, found, stages, [](auto& node) { return node.own; }), near)
          << label;
      EXPECT_LE(worst_over_even(tree, found, stages, [](auto& node) { return node.seconds; }), near)
          << label;
    }
  }
}

TEST(Balance, GivesFasterStagesMore) {
  const CostTree tree = cost_tree(nested_gpt({}));
  const simulate::Machine uneven{.stages = 3, .speeds = {1, 2, 1}};
  const auto stages = balanced(tree, uneven, start_of(tree));
  double fast = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (stages[i] == 1) fast += tree.nodes[i].own;
  }
  EXPECT_NEAR(fast, 0.5, 0.05);
}

TEST(Balance, SharesBytesWhereMemoryDiffers) {
  const CostTree tree = cost_tree(flat_gpt({.layers = 24, .vocabulary = 1000}));
  const simulate::Machine small{.stages = 2, .memory = {3'000'000'000, 1'000'000'000}};
  const auto stages = balanced(tree, small, start_of(tree));
  double second = 0, all = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    all += static_cast<double>(tree.nodes[i].weight_bytes);
    if (stages[i] == 1) second += static_cast<double>(tree.nodes[i].weight_bytes);
  }
  EXPECT_LT(second, 0.45 * all);  // though half the cost and half the work
}

TEST(Balance, LimitsWithRoomChangeNothing) {
  for (const std::string& family : family_names()) {
    const CostTree tree = cost_tree(family_member(family, 2));
    const simulate::Machine roomy{.stages = 4,
                                  .memory = std::vector<std::int64_t>(4, std::int64_t{1} << 44)};
    EXPECT_EQ(balanced(tree, roomy, start_of(tree)), balanced(tree, {.stages = 4}, start_of(tree)))
        << family;
  }
}

TEST(Balance, LeavesFixedNodesAndTheModelWhereTheyAre) {
  const CostTree tree = partly_fixed_t5();
  const auto stages = balanced(tree, {.stages = 4}, start_of(tree));
  EXPECT_EQ(stages[0], 0);
  EXPECT_TRUE(keeps_fixed_nodes(tree, stages));
}

TEST(Balance, CrossesLessWhereCrossingCosts) {
  const CostTree tree = cost_tree(nested_gpt({}));
  std::vector<int> start(tree.nodes.size());
  for (std::size_t i = 0; i < start.size(); ++i) start[i] = static_cast<int>(i * 4 / start.size());
  const auto cheap = balanced(tree, {.stages = 4}, start);
  const auto dear = balanced(tree, {.stages = 4}, start, {.crossing_price = 0.1});
  EXPECT_LT(crossings(tree, dear), crossings(tree, cheap));
}

TEST(Balance, StopsWithinItsBudget) {
  const CostTree tree = cost_tree(nested_gpt({}));
  const std::vector<int> start = start_of(tree);
  EXPECT_EQ(balanced(tree, {.stages = 4}, start, {.budget = 0}), start);
}

}  // namespace
}  // namespace smp::partitioning
