// What holds for the plan of any model.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <limits>

#include "partition/plan/plan_check.h"
#include "partition/search/tree_builder.h"
#include "trial/planning.h"

namespace smp::partitioning {
namespace {

double step_of(const PartitionPlan& plan, const std::string& strategy) {
  if (plan.summary()->chosen.strategy == strategy) return plan.summary()->chosen.step_seconds;
  for (const auto& outcome : plan.summary()->others) {
    if (outcome.strategy == strategy) return outcome.step_seconds;
  }
  return 0;
}

TEST(Partitioner, IsNeverSlowerThanThePapersAlgorithm) {
  for (const std::string& family : family_names()) {
    const SyntheticModel model = family_member(family, 3);
    const PartitionPlan plan = make_plan(model.tree, traced(model, 4, 4));
    EXPECT_GT(step_of(plan, "tree"), 0);
    EXPECT_LE(plan.summary()->chosen.step_seconds, step_of(plan, "tree")) << family;
    EXPECT_LE(plan.summary()->chosen.bottleneck_to_bound, 1.15) << family;
  }
}

/// Where every stage has room, what the default weighs memory by costs no time, nor do limits.
TEST(Partitioner, WeighsMemoryOnlyWhereAStageIsNearlyFull) {
  for (const std::string& family : family_names()) {
    const SyntheticModel model = family_member(family, 2);
    auto options = traced(model, 4, 8);
    double shortest = std::numeric_limits<double>::infinity();
    for (const std::string strategy : {"best", "tree", "contiguous"}) {
      for (const double alpha : {0.0, 0.2, 0.5}) {
        options.strategy = strategy;
        options.memory_weight = alpha;
        shortest =
            std::min(shortest, make_plan(model.tree, options).summary()->chosen.step_seconds);
      }
    }
    auto own = traced(model, 4, 8);
    for (const bool limited : {false, true}) {
      if (limited) own.machine.memory.assign(4, std::int64_t{1} << 44);
      EXPECT_LE(make_plan(model.tree, own).summary()->chosen.step_seconds, 1.02 * shortest)
          << family << (limited ? " with a limit" : "");
    }
  }
}

PartitionPlan plan_unless_too_small(const SyntheticModel& model, int pp_size) {
  try {
    return make_plan(model.tree, traced(model, pp_size, 2));
  } catch (const ResourceError&) {
    RC_DISCARD("fewer pieces than stages");
  }
}

TEST(Partitioner, PlacesEveryParameterOnceAndTiedOnesTogether) {
  EXPECT_TRUE(rc::check([] {
    const SyntheticModel model =
        random_model(*rc::gen::inRange(5, 25), *rc::gen::inRange<std::uint64_t>(0, 1000));
    const int pp_size = *rc::gen::inRange(1, 4);
    const PartitionPlan plan = plan_unless_too_small(model, pp_size);
    std::int64_t bytes = 0;
    for (const auto& row : plan.rows()) bytes += row.bytes;
    RC_ASSERT(bytes == model.tree.total_bytes());
    std::vector<int> stage(model.tree.parameters.size(), -1);
    for (std::size_t i = 0; i < plan.rows().size(); ++i) {
      for (const OwnParameter& own : model.tree.nodes[i].parameters) {
        int& known = stage[own.parameter];
        if (known < 0) known = plan.rows()[i].pp_rank;
        RC_ASSERT(known == plan.rows()[i].pp_rank);
      }
    }
    RC_ASSERT(plan.summary()->chosen.step_seconds <= step_of(plan, "tree"));
  }));
}

TEST(Partitioner, ComesToTheSamePlanAgain) {
  const SyntheticModel model = random_model(60, 8);
  EXPECT_EQ(make_plan(model.tree, traced(model, 4, 8)).to_json(),
            make_plan(model.tree, traced(model, 4, 8)).to_json());
}

// A random tree whose weights may be tied, with modules that cannot move.
ModuleTree random_tree() {
  TreeBuilder build;
  const int modules = *rc::gen::inRange(0, 25);
  for (int i = 0; i < modules; ++i) {
    const int parent = *rc::gen::inRange(0, static_cast<int>(build.tree.nodes.size()));
    const std::string path = build.tree.nodes[parent].path;
    const std::string name = "m" + std::to_string(i);
    const int node = build.tree.add(path.empty() ? name : path + "." + name, parent);
    if (*rc::gen::inRange(0, 5) == 0) build.tree.nodes[node].stays_because = "bound";
    if (*rc::gen::inRange(0, 6) == 0) build.tree.nodes[node].sequential = true;
    const int weights = *rc::gen::inRange(0, 3);
    for (int w = 0; w < weights; ++w) {
      const int known = static_cast<int>(build.tree.parameters.size());
      if (known > 0 && *rc::gen::inRange(0, 5) == 0) {
        build.tie(node, *rc::gen::inRange(0, known), "tied" + std::to_string(w));
      } else {
        build.weight(node, "w" + std::to_string(w), 4 * *rc::gen::inRange(1, 50));
      }
    }
  }
  return build.tree;
}

TEST(Partitioner, KeepsTheRulesOnAnyModel) {
  const bool holds = rc::check([] {
    const ModuleTree tree = random_tree();
    const int pp_size = *rc::gen::inRange(1, 6);
    std::vector<int> used(pp_size, 0);
    try {
      const PartitionPlan plan = make_plan(tree, on_stages(pp_size));
      check_plan(plan, tree, pp_size, "the plan");  // UsageError if it breaks a rule
      for (const auto& row : plan.rows()) ++used.at(row.pp_rank);
      std::int64_t sum = 0;
      for (const auto& row : plan.rows()) sum += row.bytes;
      RC_ASSERT(sum == tree.total_bytes());
    } catch (const ResourceError&) {
      RC_DISCARD("more stages than pieces");
    }
    RC_ASSERT(used.front() > 0);
    RC_ASSERT(std::count(used.begin(), used.end(), 0) == 0);
  });
  EXPECT_TRUE(holds);
}

}  // namespace
}  // namespace smp::partitioning
