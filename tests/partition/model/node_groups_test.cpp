// Which modules are placed as one, against the connected components of a graph.
#include "partition/model/node_groups.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include "partition/search/random_tree.h"
#include "partition/search/tree_builder.h"
#include "support/refusal.h"

namespace smp::partitioning {
namespace {

using simulate::StateKind;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

NodeGroups group(const TreeBuilder& build, const std::vector<simulate::WeightUse>& uses = {}) {
  return group_modules(build.tree, uses, nothing_fixed(build.tree));
}

NodeGroups group_with_state(const TreeBuilder& build,
                            const std::vector<simulate::StateChange>& state,
                            const std::vector<int>& fixed) {
  return group_modules(build.tree, {}, fixed, {}, state);
}

// All modules of which `predicate(a, b)` holds directly or over others, by repeated relabelling.
template <class Predicate>
std::vector<int> components(int count, const Predicate& together) {
  std::vector<int> label(count);
  for (int i = 0; i < count; ++i) label[i] = i;
  for (bool changed = true; changed;) {
    changed = false;
    for (int a = 0; a < count; ++a) {
      for (int b = 0; b < count; ++b) {
        if (label[a] >= label[b] || !together(a, b)) continue;
        label[b] = label[a];
        changed = true;
      }
    }
  }
  return label;
}

bool holds_or_uses(const RandomModel& model, int module, int parameter) {
  for (const OwnParameter& own : model.tree.nodes[module].parameters) {
    if (own.parameter == parameter) return true;
  }
  for (const simulate::WeightUse& use : model.trace.foreign_uses) {
    if (use.module == module && use.parameter == parameter) return true;
  }
  return false;
}

TEST(NodeGroups, JoinModulesThatShareAWeightOverThirdOnes) {
  TreeBuilder build;
  const int a = build.module("a", 4);
  const int b = build.module("b", 4);
  const int c = build.module("c", 4);
  build.module("d", 4);
  build.tie(b, 0, "of_a");
  build.tie(c, 1, "of_b");
  EXPECT_THAT(group(build).first, ElementsAre(0, a, a, a, 4));
  EXPECT_EQ(build.tree.nodes[b].parameters.size(), 2U);
}

TEST(NodeGroups, JoinWhoUsesAWeightOfAnotherModule) {
  TreeBuilder build;
  build.module("a", 4);
  build.module("b", 4);
  build.module("c", 4);
  EXPECT_THAT(group(build, {{3, 0}}).first, ElementsAre(0, 1, 2, 1));
}

TEST(NodeGroups, KeepAWeightThatTheStepBodyReadsOnStageZero) {
  TreeBuilder build;
  build.module("a", 4);
  build.module("b", 4);
  const NodeGroups groups = group(build, {{0, 1}});
  EXPECT_THAT(groups.first, ElementsAre(0, 1, 0));
  EXPECT_THAT(groups.fixed, ElementsAre(0, -1, 0));
}

TEST(NodeGroups, KeepBoundModulesWithTheirParent) {
  TreeBuilder build;
  build.module("a", 4);
  build.bound("a.b", 4);
  build.module("a.b.c", 4);
  EXPECT_THAT(group(build).first, ElementsAre(0, 1, 1, 3));
}

TEST(NodeGroups, KeepStateThatOthersReadOnStageZeroWithAllAboveIt) {
  TreeBuilder build;
  const int block = build.module("block", 4);
  const int moe = build.module("block.moe", 4);
  const int expert = build.module("block.moe.expert", 4);
  const int other = build.module("other", 4);
  const auto free = nothing_fixed(build.tree);
  const auto groups =
      group_with_state(build, {{moe, StateKind::kShared, "writes its members"}}, free);
  EXPECT_THAT(groups.first, ElementsAre(0, 0, 0, expert, other));
  const auto ordered = group_with_state(build, {{moe, StateKind::kOrdered, "writes 'ema'"}}, free);
  EXPECT_THAT(ordered.first, ElementsAre(0, block, moe, expert, other));
  auto pinned = free;
  pinned[moe] = 1;
  EXPECT_THAT(refusal<UsageError>([&] {
                group_with_state(
                    build, {{moe, StateKind::kShared, "writes its members, from byte 8 of 24"}},
                    pinned);
              }),
              AllOf(HasSubstr("block.moe"), HasSubstr("from byte 8 of 24"),
                    HasSubstr("smp::ordered_state_v")));
}

TEST(NodeGroups, LetAModuleWithoutWeightsFollowItsParent) {
  TreeBuilder build;
  build.module("a", 4);
  build.module("a.dropout");
  build.module("activations");
  build.module("activations.relu");
  EXPECT_THAT(group(build).first, ElementsAre(0, 1, 1, 0, 0));
}

TEST(NodeGroups, LetAModuleWithoutWeightsFollowItsNeighbourInASequential) {
  TreeBuilder build;
  build.module("s");
  build.tree.nodes[1].sequential = true;
  build.module("s.flatten");  // 2
  build.module("s.noise");
  build.module("s.first", 4);  // 4
  build.module("s.relu");
  build.module("s.dropout");
  build.module("s.last", 4);  // 7
  EXPECT_THAT(group(build).first, ElementsAre(0, 1, 2, 2, 2, 2, 2, 7));
}

TEST(NodeGroups, StayApartIfNoModuleHasWeights) {
  TreeBuilder build;
  build.module("a");
  build.module("b");
  EXPECT_THAT(group(build).first, ElementsAre(0, 1, 2));
}

TEST(NodeGroups, LeaveAModuleWithoutWeightsWhereTheUserPutIt) {
  TreeBuilder build;
  build.module("a", 4);
  build.module("a.dropout");
  const NodeGroups groups = group_modules(build.tree, {}, {-1, -1, 2});
  EXPECT_THAT(groups.first, ElementsAre(0, 1, 2));
  EXPECT_THAT(groups.fixed, ElementsAre(0, -1, 2));
}

TEST(NodeGroups, NameBothSidesOfEveryContradiction) {
  TreeBuilder build;
  const int a = build.module("a", 4);
  const int b = build.module("b");
  build.tie(b, 0);
  build.bound("a.part", 4);
  EXPECT_THAT(refusal([&] {
                group_modules(build.tree, {}, {1, 1, 2, 3});
              }),
              AllOf(HasSubstr("3 problems"), HasSubstr("the model itself runs on stage 0"),
                    HasSubstr("\"a\" (placed on stage 1) and \"b\" (placed on stage 2) must be on"
                              " one stage: the weight a.weight"),
                    HasSubstr("\"a\" (placed on stage 1) and \"a.part\" (placed on stage 3)"),
                    HasSubstr("its class was not declared with SMP_MODULE")));
  EXPECT_EQ(build.tree.find("a"), a);
}

TEST(NodeGroups, AreTheConnectedComponentsOfSharedWeights) {
  const bool holds = rc::check([] {
    RandomModelOptions options;
    options.modules = *rc::gen::inRange(1, 40);
    RandomModel model = random_model(*rc::gen::arbitrary<std::uint64_t>(), options);
    for (ModuleNode& node : model.tree.nodes) {  // leaves sharing as the only reason to join
      node.stays_because.clear();
      if (!node.parameters.empty()) continue;
      node.parameters.push_back({"own", static_cast<int>(model.tree.parameters.size())});
      model.tree.parameters.push_back({"own", "", 1, 4});
    }
    const int weights = static_cast<int>(model.tree.parameters.size());
    const auto expected = components(static_cast<int>(model.tree.nodes.size()), [&](int a, int b) {
      for (int p = 0; p < weights; ++p) {
        if (holds_or_uses(model, a, p) && holds_or_uses(model, b, p)) return true;
      }
      return false;
    });
    RC_ASSERT(group_modules(model.tree, model.trace.foreign_uses, model.fixed).first == expected);
  });
  EXPECT_TRUE(holds);
}

}  // namespace
}  // namespace smp::partitioning
