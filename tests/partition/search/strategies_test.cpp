// The tree algorithm, the contiguous cut and the bound: by hand, by brute force, over random trees.
#include "partition/search/strategies.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "partition/model/placement_rules.h"
#include "partition/search/random_tree.h"
#include "partition/search/tree_builder.h"

namespace smp::partitioning {
namespace {

using testing::ElementsAre;

CostTree by_weight(const TreeBuilder& build, std::vector<int> fixed = {}) {
  fixed.resize(build.tree.nodes.size(), -1);
  return make_cost_tree(build.tree, simulate::Trace{}, fixed, {1});
}

// Adds a module whose parts have weights of so many bytes.
void add_parts(TreeBuilder& build, const std::string& path, const std::vector<int>& bytes) {
  build.module(path);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    build.module(path + "." + std::to_string(i), bytes[i]);
  }
}

// The nodes in the order of execution, a parent before its children.
void preorder(const CostTree& tree, int node, std::vector<int>& order) {
  order.push_back(node);
  for (const int child : tree.nodes[node].children) preorder(tree, child, order);
}

std::vector<int> preorder(const CostTree& tree) {
  std::vector<int> order;
  preorder(tree, 0, order);
  return order;
}

TEST(TreePartition, SharesStagesInProportionAndRecursesIntoSegments) {
  TreeBuilder build;
  build.module("a", 100);  // 1
  for (const char* name : {"b", "c"}) add_parts(build, name, {100, 100, 100, 100});
  // Seats for a, b, c: 100, 400, 400 give 0, 2, 2 with b first.
  EXPECT_THAT(tree_partition(by_weight(build), {.stages = 4}),
              ElementsAre(0, 0, 0, 0, 0, 2, 2, 1, 1, 1, 3, 3));
}

TEST(TreePartition, LeavesASegmentWithoutStageWithTheParent) {
  TreeBuilder build;
  build.module("small", 1);
  build.module("large", 100);
  build.module("large.0", 100);
  build.module("large.1", 100);
  EXPECT_THAT(tree_partition(by_weight(build), {.stages = 2}), ElementsAre(0, 0, 0, 0, 1));
}

TEST(TreePartition, GivesNoSubtreeMoreStagesThanNodes) {
  TreeBuilder build;
  build.module("huge", 1000);
  build.module("a", 1);
  build.module("b", 1);
  const auto stages = tree_partition(by_weight(build), {.stages = 3});
  EXPECT_EQ(std::set<int>(stages.begin(), stages.end()), (std::set<int>{0, 1, 2}));
}

TEST(TreePartition, PassesOverAStageThatPinsFillAlready) {
  TreeBuilder build;
  build.module("pinned", 100);
  build.module("a", 100);
  build.module("b", 100);
  EXPECT_THAT(tree_partition(by_weight(build, {-1, 1, -1, -1}), {.stages = 3}),
              ElementsAre(0, 1, 0, 2));
}

TEST(ContiguousPartition, OpensANodeOnlyIfThatBalancesBetter) {
  TreeBuilder build;
  for (const char* name : {"a", "b"}) add_parts(build, name, {10, 10});
  EXPECT_THAT(contiguous_partition(by_weight(build), {.stages = 2}),
              ElementsAre(0, 0, 0, 0, 1, 1, 1));
  EXPECT_THAT(contiguous_partition(by_weight(build), {.stages = 4}),
              ElementsAre(0, 0, 0, 1, 2, 2, 3));
}

TEST(ContiguousPartition, KeepsANodeWholeIfThatBalancesAlike) {
  TreeBuilder build;
  add_parts(build, "a", {10, 10, 2});
  build.module("b", 20);
  const CostTree tree = by_weight(build);
  // 20 | 22 and 22 | 20 balance alike; the second leaves a whole.
  EXPECT_THAT(contiguous_partition(tree, {.stages = 2}), ElementsAre(0, 0, 0, 0, 0, 1));
}

TEST(ContiguousPartition, OpensFewerNodesForSomeSlack) {
  TreeBuilder build;
  add_parts(build, "a", {10, 10, 3});
  build.module("b", 18);
  const CostTree tree = by_weight(build);  // 20 | 21 opens a, 23 | 18 does not
  EXPECT_THAT(contiguous_partition(tree, {.stages = 2}), ElementsAre(0, 0, 0, 0, 1, 1));
  EXPECT_THAT(contiguous_partition(tree, {.stages = 2}, 0.1), ElementsAre(0, 0, 0, 0, 0, 1));
}

TEST(ContiguousPartition, GivesAFastStageMore) {
  TreeBuilder build;
  for (const char* name : {"a", "b", "c", "d"}) build.module(name, 10);
  EXPECT_THAT(contiguous_partition(by_weight(build), {.stages = 2, .speeds = {1, 3}}),
              ElementsAre(0, 0, 1, 1, 1));
}

TEST(ContiguousPartition, CountsWhatPinsPutOnAStage) {
  TreeBuilder build;
  build.module("pinned", 20);
  for (const char* name : {"a", "b", "c", "d"}) build.module(name, 10);
  EXPECT_THAT(contiguous_partition(by_weight(build, {-1, 1, -1, -1, -1, -1}), {.stages = 2}),
              ElementsAre(0, 1, 0, 0, 0, 1));
}

TEST(ContiguousPartition, LeavesStagesEmptyOnlyIfNodesAreTooFew) {
  TreeBuilder build;
  build.module("a", 10);
  build.module("b", 10);
  const auto stages = contiguous_partition(by_weight(build), {.stages = 3});
  EXPECT_EQ(stages[0], 0);
  EXPECT_NE(stages[1], stages[2]);
}

TEST(BottleneckLowerBound, IsReachedByEqualBlocks) {
  TreeBuilder build;
  for (const char* name : {"a", "b", "c", "d", "e"}) build.module(name, 10);
  const CostTree tree = by_weight(build);
  // Five blocks on two stages: one has three.
  EXPECT_DOUBLE_EQ(bottleneck_lower_bound(tree, {.stages = 2}), 0.6);
  EXPECT_DOUBLE_EQ(bottleneck(tree, contiguous_partition(tree, {.stages = 2}), {.stages = 2}), 0.6);
}

TEST(BottleneckLowerBound, KnowsTheLargestNodeTheMeanAndTheFixedLoads) {
  TreeBuilder build;
  build.module("a", 70);
  build.module("b", 20);
  build.module("c", 10);
  EXPECT_DOUBLE_EQ(bottleneck_lower_bound(by_weight(build), {.stages = 3}), 0.7);
  EXPECT_DOUBLE_EQ(bottleneck_lower_bound(by_weight(build), {.stages = 2, .speeds = {4, 1}}), 0.2);
  const CostTree pinned = by_weight(build, {-1, -1, 2, 2});
  EXPECT_DOUBLE_EQ(bottleneck_lower_bound(pinned, {.stages = 3, .speeds = {9, 9, 0.5}}), 0.6);
}

struct RandomCase {
  RandomModel model;
  CostTree tree;
  simulate::Machine machine;
};

RandomCase random_case(int most_modules) {
  RandomModelOptions options;
  options.modules = *rc::gen::inRange(1, most_modules);
  options.pinned_stages = *rc::gen::inRange(0, 3);
  const int stages = *rc::gen::inRange(std::max(1, options.pinned_stages), 9);
  RandomModel model = random_model(*rc::gen::arbitrary<std::uint64_t>(), options);
  CostTree tree =
      make_cost_tree(model.tree, model.trace, model.fixed, {*rc::gen::inRange(0, 6) / 5.0});
  std::vector<double> speeds;
  if (*rc::gen::arbitrary<bool>()) {
    for (int s = 0; s < stages; ++s) speeds.push_back(*rc::gen::inRange(1, 5));
  }
  return {std::move(model), std::move(tree), {.stages = stages, .speeds = std::move(speeds)}};
}

// What every strategy promises.
void check_placement(const RandomCase& test, const std::vector<int>& stages) {
  const auto of_modules = stages_of_modules(test.tree, stages);
  const std::vector<std::string> reasons(of_modules.size());
  RC_ASSERT(placement_faults(test.model.tree, of_modules, test.machine.stages, reasons).empty());
  for (std::size_t m = 0; m < of_modules.size(); ++m) {
    RC_ASSERT(test.model.fixed[m] < 0 || of_modules[m] == test.model.fixed[m]);
  }
  const auto holders = holders_of_parameters(test.model.tree);
  for (const simulate::WeightUse& use : test.model.trace.foreign_uses) {
    for (const int holder : holders[use.parameter]) {
      RC_ASSERT(of_modules[holder] == of_modules[use.module]);
    }
  }
  RC_ASSERT(bottleneck(test.tree, stages, test.machine) >=
            bottleneck_lower_bound(test.tree, test.machine) * (1 - 1e-12));
}

// Stages that hold something, if there are at least as many free nodes as stages without a pin.
void check_no_stage_is_idle(const RandomCase& test, const std::vector<int>& stages) {
  std::set<int> busy;
  int free = 0;
  for (std::size_t n = 0; n < stages.size(); ++n) {
    if (test.tree.nodes[n].fixed < 0) ++free;
    busy.insert(stages[n]);
  }
  if (free >= test.machine.stages) {
    RC_ASSERT(static_cast<int>(busy.size()) == test.machine.stages);
  }
}

TEST(TreePartition, PlacesEveryModuleByTheRules) {
  const bool holds = rc::check([] {
    const RandomCase test = random_case(60);
    const auto stages = tree_partition(test.tree, test.machine);
    check_placement(test, stages);
    check_no_stage_is_idle(test, stages);
  });
  EXPECT_TRUE(holds);
}

TEST(ContiguousPartition, PlacesEveryModuleByTheRulesInOneRunAStage) {
  const bool holds = rc::check([] {
    const RandomCase test = random_case(60);
    const auto stages = contiguous_partition(test.tree, test.machine);
    check_placement(test, stages);
    check_no_stage_is_idle(test, stages);
    int last = 0;
    for (const int node : preorder(test.tree)) {
      if (test.tree.nodes[node].fixed >= 0) continue;
      RC_ASSERT(stages[node] >= last);
      last = stages[node];
    }
  });
  EXPECT_TRUE(holds);
}

// Tries every placement of the free nodes from `node` on.
double best_bottleneck(const RandomCase& test, std::vector<int>& stages, std::size_t node) {
  if (node == stages.size()) return bottleneck(test.tree, stages, test.machine);
  const int fixed = test.tree.nodes[node].fixed;
  double best = 1e300;
  for (int stage = 0; stage < test.machine.stages; ++stage) {
    if (fixed >= 0 && stage != fixed) continue;
    stages[node] = stage;
    best = std::min(best, best_bottleneck(test, stages, node + 1));
  }
  return best;
}

TEST(BottleneckLowerBound, IsBelowTheBestOfAllPlacements) {
  const bool holds = rc::check([] {
    RandomCase test = random_case(9);
    test.machine.stages = std::min(test.machine.stages, 3);
    for (CostNode& node : test.tree.nodes) {
      if (node.fixed >= test.machine.stages) node.fixed = 0;
    }
    std::vector<int> stages(test.tree.nodes.size());
    RC_ASSERT(bottleneck_lower_bound(test.tree, test.machine) <=
              best_bottleneck(test, stages, 0) * (1 + 1e-12));
  });
  EXPECT_TRUE(holds);
}

TEST(Strategies, PlaceTenThousandModulesOnAThousandStages) {
  RandomModelOptions options;
  options.modules = 10'000;
  options.oddities = false;
  const RandomModel model = random_model(7, options);
  const CostTree tree = make_cost_tree(model.tree, model.trace, model.fixed);
  const simulate::Machine machine{.stages = 1024};
  const double bound = bottleneck_lower_bound(tree, machine);
  EXPECT_LE(bottleneck(tree, contiguous_partition(tree, machine), machine), 1.6 * bound);
  const auto stages = tree_partition(tree, machine);
  EXPECT_EQ(std::set<int>(stages.begin(), stages.end()).size(), 1024U);
}

}  // namespace
}  // namespace smp::partitioning
