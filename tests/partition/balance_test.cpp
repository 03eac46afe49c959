// Loads are even afterwards, and what must stay stays.
#include "partition/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "support/model_families.h"

namespace smp::partition {
namespace {

CostTree cost_tree(const SyntheticModel& model, std::vector<int> fixed = {}) {
  fixed.resize(model.tree.nodes.size(), -1);
  return make_cost_tree(model.tree, model.trace, fixed);
}

Machine machine(int stages) {
  Machine machine;
  machine.stages = stages;
  return machine;
}

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
      const auto found = balanced(tree, machine(stages), std::vector<int>(tree.nodes.size(), 0));
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
  Machine uneven = machine(3);
  uneven.speeds = {1, 2, 1};
  const auto stages = balanced(tree, uneven, std::vector<int>(tree.nodes.size(), 0));
  double fast = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (stages[i] == 1) fast += tree.nodes[i].own;
  }
  EXPECT_NEAR(fast, 0.5, 0.05);
}

TEST(Balance, SharesBytesWhereMemoryDiffers) {
  const CostTree tree = cost_tree(flat_gpt({.layers = 24, .vocabulary = 1000}));
  Machine small = machine(2);
  small.memory = {3'000'000'000, 1'000'000'000};
  const auto stages = balanced(tree, small, std::vector<int>(tree.nodes.size(), 0));
  double second = 0, all = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    all += static_cast<double>(tree.nodes[i].weight_bytes);
    if (stages[i] == 1) second += static_cast<double>(tree.nodes[i].weight_bytes);
  }
  EXPECT_LT(second, 0.45 * all);  // though half the cost and half the work
}

TEST(Balance, LeavesFixedNodesAndTheModelWhereTheyAre) {
  const SyntheticModel model = t5({});
  std::vector<int> fixed(model.tree.nodes.size(), -1);
  for (std::size_t i = 5; i < fixed.size(); i += 5) {
    if (model.tree.nodes[i].movable()) fixed[i] = 2;
  }
  const CostTree tree = cost_tree(model, fixed);
  std::vector<int> start;
  for (const CostNode& node : tree.nodes) start.push_back(std::max(0, node.fixed));
  const auto stages = balanced(tree, machine(4), start);
  EXPECT_EQ(stages[0], 0);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    EXPECT_TRUE(tree.nodes[i].fixed < 0 || stages[i] == tree.nodes[i].fixed);
  }
}

TEST(Balance, CrossesLessWhereCrossingCosts) {
  const CostTree tree = cost_tree(nested_gpt({}));
  std::vector<int> start(tree.nodes.size());
  for (std::size_t i = 0; i < start.size(); ++i) start[i] = static_cast<int>(i * 4 / start.size());
  const auto cheap = balanced(tree, machine(4), start);
  const auto dear = balanced(tree, machine(4), start, {.crossing_price = 0.1});
  EXPECT_LT(crossings(tree, dear), crossings(tree, cheap));
}

TEST(Balance, StopsWithinItsBudget) {
  const CostTree tree = cost_tree(nested_gpt({}));
  const std::vector<int> start(tree.nodes.size(), 0);
  EXPECT_EQ(balanced(tree, machine(4), start, {.budget = 0}), start);
}

}  // namespace
}  // namespace smp::partition
