// Who must be where members are written, from runs that are answered by a table.
#include "trial/state/state_readers.h"

#include <gmock/gmock.h>

#include <map>
#include <string>

#include "partition/search/tree_builder.h"

namespace smp::partitioning {
namespace state_readers_test {

using simulate::StateKind;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

/// A model of `count` modules, all children of the model itself, but 2, which is a child of 1.
struct Model {
  explicit Model(int count) {
    for (int m = 1; m <= count; ++m) {
      build.module(m == 2 ? "m1.m2" : "m" + std::to_string(m), 4);
    }
    for (int m = 0; m <= count; ++m) modules.emplace(0, m);
  }

  /// `owner` keeps something that `readers` read.
  void keep(int owner, const std::set<int>& readers, bool always_changes) {
    members.push_back({{0, owner}, {}, {}, always_changes});
    readers_of[owner] = readers;
  }

  /// By module.
  std::map<int, StateKind> run() {
    std::vector<simulate::Trace> traces(1);
    for (const auto& kept : members) {
      traces[0].state.push_back(
          {kept.owner.second, kept.always_change ? StateKind::kShared : StateKind::kCache, "x"});
    }
    note_readers(
        members, modules, {&build.tree},
        [&](const auto& hidden, const auto& from) {
          ++runs;
          for (const auto& kept : hidden) {
            for (const int reader : readers_of.at(kept.owner.second)) {
              if (from.count({0, reader}) > 0) return true;
            }
          }
          return false;
        },
        traces);
    std::map<int, StateKind> found;
    for (const auto& change : traces[0].state) found[change.module] = change.kind;
    return found;
  }

  TreeBuilder build;
  std::set<ModelModule> modules;
  std::vector<KeptMembers> members;
  std::map<int, std::set<int>> readers_of;
  int runs = 0;
};

TEST(StateReaders, NothingKeptCostsNoRun) {
  Model model(5);
  EXPECT_THAT(model.run(), IsEmpty());
  EXPECT_EQ(model.runs, 0);
}

TEST(StateReaders, ACacheThatNobodyReadsStaysOne) {
  Model model(5);
  model.keep(2, {}, false);
  EXPECT_THAT(model.run(), ElementsAre(Pair(2, StateKind::kCache)));
  EXPECT_EQ(model.runs, 1);
}

TEST(StateReaders, ACacheThatItsParentReadsIsState) {
  Model model(5);
  model.keep(2, {1}, false);
  model.keep(3, {}, false);
  EXPECT_THAT(model.run(), ElementsAre(Pair(2, StateKind::kShared), Pair(3, StateKind::kCache)));
}

TEST(StateReaders, ReadersElsewhereAreFoundAmongMany) {
  Model model(100);
  model.keep(2, {0, 1, 57, 93}, true);
  EXPECT_THAT(model.run(), ElementsAre(Pair(2, StateKind::kShared), Pair(57, StateKind::kShared),
                                       Pair(93, StateKind::kShared)));
  EXPECT_LE(model.runs, 30);
}

TEST(StateReaders, ThoseAboveStateAreWhereItIs) {
  Model model(100);
  model.keep(2, {0, 1}, true);
  EXPECT_THAT(model.run(), ElementsAre(Pair(2, StateKind::kShared)));
  EXPECT_EQ(model.runs, 1);
}

/// Above what nobody reads is not where the state of another module is.
TEST(StateReaders, ThoseAboveAnUnreadCacheCountAsOthers) {
  Model model(5);
  model.keep(2, {}, false);
  model.keep(4, {1}, true);
  EXPECT_THAT(model.run(), ElementsAre(Pair(1, StateKind::kShared), Pair(2, StateKind::kCache),
                                       Pair(4, StateKind::kShared)));
}

TEST(StateReaders, WhatTooManyRunsWouldTellCountsAsReaders) {
  Model model(2000);
  std::set<int> all;
  for (int m = 3; m <= 2000; ++m) all.insert(m);
  model.keep(2, all, true);
  EXPECT_EQ(model.run().size(), 1999U);
  EXPECT_LE(model.runs, 64);
}

}  // namespace state_readers_test
}  // namespace smp::partitioning
