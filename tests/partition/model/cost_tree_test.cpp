// The tree of ModuleNodes and its costs, against sums made by hand and by recursion.
#include "partition/model/cost_tree.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <numeric>

#include "partition/search/random_tree.h"
#include "partition/search/tree_builder.h"

namespace smp::partitioning {
namespace {

using testing::DoubleEq;
using testing::DoubleNear;
using testing::ElementsAre;

CostTree tree_of(const TreeBuilder& build, const simulate::Trace& trace,
                 const CostOptions& options = {}) {
  return make_cost_tree(build.tree, trace, nothing_fixed(build.tree), options);
}

simulate::TracedCall call(int module, int caller, double before, double after,
                          std::int64_t activations) {
  simulate::TracedCall call{module, caller};
  call.before.seconds = before;
  call.after.seconds = after;
  call.after.activation_bytes = activations;
  return call;
}

// a (60 B) holds b (20 B); c has 20 B.
struct TwoBranches {
  TwoBranches() {
    build.module("a", 60);
    build.module("a.b", 20);
    build.module("c", 20);
    trace.calls = {call(3, -1, 1, 4, 50), call(1, -1, 2, 3, 30), call(2, 1, 5, 1, 20)};
    trace.body_after.seconds = 4;
  }
  TreeBuilder build;
  simulate::Trace trace;
};

TEST(CostTree, CountsTheTimeBetweenCallsForTheCaller) {
  const TwoBranches model;
  const CostTree tree = tree_of(model.build, model.trace, {0});
  const double both = 1 + model.trace.backward_ratio;  // forward and backward
  EXPECT_DOUBLE_EQ(tree.nodes[0].seconds, both * (1 + 2 + 4));
  EXPECT_DOUBLE_EQ(tree.nodes[1].seconds, both * (3 + 5));
  EXPECT_DOUBLE_EQ(tree.nodes[2].seconds, both * 1);
  EXPECT_DOUBLE_EQ(tree.nodes[1].cost, 9.0 / 20);
}

/// What is frozen costs its forward only.
TEST(CostTree, CountsABackwardThatIsKnownAsItIs) {
  TwoBranches model;
  model.trace.calls[1].after.backward_seconds = 0;
  model.trace.calls[2].after.backward_seconds = 7;
  const CostTree tree = tree_of(model.build, model.trace, {0});
  EXPECT_DOUBLE_EQ(tree.nodes[1].seconds, 3 + 3 * 5);
  EXPECT_DOUBLE_EQ(tree.nodes[2].seconds, 1 + 7);
}

TEST(CostTree, MixesSharesOfMemoryAndTimeByAlpha) {
  const TwoBranches model;
  const CostTree memory = tree_of(model.build, model.trace, {1});
  EXPECT_DOUBLE_EQ(memory.nodes[2].own, (20 + 20) / 200.0);
  const CostTree mixed = tree_of(model.build, model.trace, {0.25});
  EXPECT_DOUBLE_EQ(mixed.nodes[2].own, 0.25 * 0.2 + 0.75 * 1 / 20);
  EXPECT_DOUBLE_EQ(mixed.nodes[0].cost, 1);
}

TEST(CostTree, AddsSubmodulesOnceMoreInThePrintedReading) {
  const TwoBranches model;
  const CostTree tree = tree_of(model.build, model.trace, {1, CostReading::kLiteral});
  // Inclusive costs: c 70, b 40, a 130, the model 200; their sum is C of the root.
  EXPECT_THAT(tree.nodes[2].cost, DoubleEq(40.0 / 440));
  EXPECT_THAT(tree.nodes[1].cost, DoubleNear(170.0 / 440, 1e-15));
  EXPECT_THAT(tree.nodes[0].own, DoubleNear(200.0 / 440, 1e-15));
  EXPECT_THAT(tree.nodes[0].cost, DoubleEq(1));
}

TEST(CostTree, OrdersChildrenByFirstExecution) {
  const TwoBranches model;
  EXPECT_THAT(tree_of(model.build, model.trace).nodes[0].children, ElementsAre(3, 1));
  EXPECT_THAT(tree_of(model.build, simulate::Trace{}).nodes[0].children, ElementsAre(1, 3));
}

TEST(CostTree, OrdersAContainerByTheFirstOfItsParts) {
  TreeBuilder build;
  build.module("late", 4);
  build.module("container");
  build.module("container.early", 4);
  build.module("never", 4);
  simulate::Trace trace;
  trace.calls = {call(3, -1, 0, 1, 0), call(1, -1, 0, 1, 0)};
  EXPECT_THAT(tree_of(build, trace).nodes[0].children, ElementsAre(2, 1, 4));
}

TEST(CostTree, JoinsTiedModulesUnderTheParentOfTheFirst) {
  TreeBuilder build;
  build.module("encoder");
  build.module("encoder.embed", 40);
  build.module("encoder.block", 40);
  build.module("decoder");
  build.tie(build.module("decoder.embed"), 0);
  build.module("decoder.block", 40);
  const CostTree tree = tree_of(build, simulate::Trace{}, {1});
  EXPECT_THAT(tree.node_of_module, ElementsAre(0, 1, 2, 3, 4, 2, 5));
  EXPECT_THAT(tree.nodes[2].modules, ElementsAre(2, 5));
  EXPECT_EQ(tree.nodes[2].parent, 1);
  EXPECT_EQ(tree.nodes[2].weight_bytes, 40);
  EXPECT_THAT(stages_of_modules(tree, {0, 0, 1, 2, 3, 4}), ElementsAre(0, 0, 1, 2, 3, 1, 4));
}

TEST(CostTree, CountsModulesIfNothingWasRun) {
  TreeBuilder build;
  build.module("a", 400);
  build.module("a.b", 4);
  build.module("c", 4);
  simulate::Trace trace;
  trace.source = simulate::CostSource::kCounts;
  const CostTree tree = tree_of(build, trace, {0});
  EXPECT_DOUBLE_EQ(tree.nodes[1].cost, 0.5);
  EXPECT_DOUBLE_EQ(tree.nodes[3].cost, 0.25);
}

TEST(CostTree, GivesMemoryTheWholeSayIfThereAreNoTimes) {
  TreeBuilder build;
  build.module("a", 30);
  build.module("b", 10);
  EXPECT_DOUBLE_EQ(tree_of(build, simulate::Trace{}, {0}).nodes[1].own, 0.75);
}

TEST(CostTree, PricesModulesEquallyIfTheyHaveNothing) {
  TreeBuilder build;
  build.module("a");
  build.module("b");
  const CostTree tree = tree_of(build, simulate::Trace{});
  for (const CostNode& node : tree.nodes) EXPECT_DOUBLE_EQ(node.own, 1.0 / 3);
}

struct WeighedModel {
  RandomModel model;
  CostTree tree;
};

WeighedModel weighed_model(CostReading reading) {
  RandomModelOptions options;
  options.modules = *rc::gen::inRange(1, 80);
  options.pinned_stages = *rc::gen::inRange(0, 4);
  RandomModel model = random_model(*rc::gen::arbitrary<std::uint64_t>(), options);
  const double alpha = *rc::gen::inRange(0, 11) / 10.0;
  CostTree tree = make_cost_tree(model.tree, model.trace, model.fixed, {alpha, reading});
  return {std::move(model), std::move(tree)};
}

TEST(CostTree, HoldsEveryModuleOnceAndEveryWeightOnce) {
  const bool holds = rc::check([] {
    const auto [model, tree] = weighed_model(CostReading::kExclusive);
    std::vector<int> seen(model.tree.nodes.size(), 0);
    std::int64_t bytes = 0;
    double seconds = 0;
    for (std::size_t n = 0; n < tree.nodes.size(); ++n) {
      for (const int module : tree.nodes[n].modules) {
        ++seen[module];
        RC_ASSERT(tree.node_of_module[module] == static_cast<int>(n));
      }
      bytes += tree.nodes[n].weight_bytes;
      seconds += tree.nodes[n].seconds;
    }
    RC_ASSERT(seen == std::vector<int>(seen.size(), 1));
    RC_ASSERT(bytes == model.tree.total_bytes());
    double traced = model.trace.body_after.seconds;
    for (const simulate::TracedCall& c : model.trace.calls)
      traced += c.before.seconds + c.after.seconds;
    traced *= 1 + model.trace.backward_ratio;
    RC_ASSERT(std::abs(seconds - traced) <= 1e-9 * traced);
  });
  EXPECT_TRUE(holds);
}

TEST(CostTree, IsATreeWhoseParentsComeFirst) {
  const bool holds = rc::check([] {
    const CostTree tree = weighed_model(CostReading::kExclusive).tree;
    std::vector<int> parents(tree.nodes.size(), -1);
    for (std::size_t n = 0; n < tree.nodes.size(); ++n) {
      for (const int child : tree.nodes[n].children) {
        RC_ASSERT(child > static_cast<int>(n) && parents[child] == -1);
        parents[child] = static_cast<int>(n);
      }
    }
    for (std::size_t n = 0; n < tree.nodes.size(); ++n) {
      RC_ASSERT(parents[n] == tree.nodes[n].parent);
    }
  });
  EXPECT_TRUE(holds);
}

TEST(CostTree, IsSuperAdditiveAndOneAtTheRootInBothReadings) {
  const bool holds = rc::check([] {
    const auto reading = *rc::gen::element(CostReading::kExclusive, CostReading::kLiteral);
    const CostTree tree = weighed_model(reading).tree;
    RC_ASSERT(std::abs(tree.nodes[0].cost - 1) < 1e-9);
    for (const CostNode& node : tree.nodes) {
      double children = 0;
      for (const int child : node.children) children += tree.nodes[child].cost;
      RC_ASSERT(node.cost >= children);
      RC_ASSERT(node.own >= 0);
    }
  });
  EXPECT_TRUE(holds);
}

TEST(CostTree, KeepsWhatIsFixed) {
  const bool holds = rc::check([] {
    const auto [model, tree] = weighed_model(CostReading::kExclusive);
    for (std::size_t m = 0; m < model.fixed.size(); ++m) {
      if (model.fixed[m] < 0) continue;
      RC_ASSERT(tree.nodes[tree.node_of_module[m]].fixed == model.fixed[m]);
    }
    RC_ASSERT(tree.nodes[0].fixed == 0);
  });
  EXPECT_TRUE(holds);
}

}  // namespace
}  // namespace smp::partitioning
