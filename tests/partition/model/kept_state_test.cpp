// What modules keep, seen and said, and seen in two kinds of runs.
#include "partition/model/kept_state.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace smp::partitioning {
namespace kept_state_test {

using simulate::StateChange;
using simulate::StateKind;

using Kinds = std::vector<std::pair<int, StateKind>>;

Kinds kinds_of(const std::vector<StateChange>& state) {
  Kinds kinds;
  for (const auto& change : state) kinds.emplace_back(change.module, change.kind);
  return kinds;
}

TEST(KeptState, OfTwoRunsIsWhatRestrictsMost) {
  std::vector<StateChange> state{{1, StateKind::kCache, {}},
                                 {2, StateKind::kShared, "writes its members"},
                                 {5, StateKind::kOrdered, "writes 'u'"}};
  const std::vector<StateChange> more{{2, StateKind::kOrdered, "writes 'v'"},
                                      {5, StateKind::kShared, "writes what it keeps"},
                                      {0, StateKind::kCache, {}}};
  add_state(state, more);
  EXPECT_EQ(kinds_of(state), (Kinds{{0, StateKind::kCache},
                                    {1, StateKind::kCache},
                                    {2, StateKind::kShared},
                                    {5, StateKind::kShared}}));
  EXPECT_EQ(state[2].what, "writes its members");
  EXPECT_EQ(state[3].what, "writes what it keeps");
}

TEST(KeptState, ThatAProgramSaysCountsMore) {
  ModuleTree tree;
  tree.add("", -1);
  const int quiet = tree.add("quiet", 0), loud = tree.add("loud", 0);
  tree.nodes[static_cast<std::size_t>(quiet)].state_use = StateUse::kPrivate;
  tree.nodes[static_cast<std::size_t>(loud)].state_use = StateUse::kShared;
  const auto state = all_state(tree, {{quiet, StateKind::kShared, "writes its members"}});
  EXPECT_EQ(kinds_of(state), (Kinds{{loud, StateKind::kShared}}));
}

}  // namespace kept_state_test
}  // namespace smp::partitioning
