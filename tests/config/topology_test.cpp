// Ranks on the parallel axes against the published tables, and the laws groups must obey.
#include "smp/topology.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <set>

#include "smp/error.h"

namespace smp {
namespace {

using testing::ElementsAre;
using Groups = std::vector<std::vector<int>>;

const char* const kPlacements[] = {"DPT", "DTP", "PDT", "PTD", "TDP", "TPD"};

Topology topology(int world, int pp, int tp, const std::string& placement, int rank = 0) {
  Arrangement arrangement;
  arrangement.world_size = world;
  arrangement.pp_size = pp;
  arrangement.tp_size = tp;
  arrangement.placement = placement;
  return Topology(arrangement, rank);
}

std::vector<Coordinates> table(const Topology& topology) {
  std::vector<Coordinates> places;
  for (int rank = 0; rank < topology.size(); ++rank) places.push_back(topology.coordinates(rank));
  return places;
}

// Calls `check` for every world of up to 16 ranks, every factorization and every placement.
void for_all(const std::function<void(const Topology&)>& check) {
  for (int world = 1; world <= 16; ++world) {
    for (int pp = 1; pp <= world; ++pp) {
      for (int tp = 1; pp * tp <= world; ++tp) {
        if (world % (pp * tp) != 0) continue;
        for (const char* placement : kPlacements) check(topology(world, pp, tp, placement));
      }
    }
  }
}

TEST(Topology, MatchesThePublishedTableOfDPT) {
  EXPECT_THAT(table(topology(8, 2, 2, "DPT")),
              ElementsAre(Coordinates{0, 0, 0}, Coordinates{0, 0, 1}, Coordinates{0, 1, 0},
                          Coordinates{0, 1, 1}, Coordinates{1, 0, 0}, Coordinates{1, 0, 1},
                          Coordinates{1, 1, 0}, Coordinates{1, 1, 1}));
}

TEST(Topology, MatchesThePublishedTableOfPTD) {
  EXPECT_THAT(table(topology(8, 2, 2, "PTD")),
              ElementsAre(Coordinates{0, 0, 0}, Coordinates{1, 0, 0}, Coordinates{0, 0, 1},
                          Coordinates{1, 0, 1}, Coordinates{0, 1, 0}, Coordinates{1, 1, 0},
                          Coordinates{0, 1, 1}, Coordinates{1, 1, 1}));
}

TEST(Topology, MatchesThePublishedGroupsOfSpread) {
  const Topology spread = topology(8, 2, 1, "spread");
  EXPECT_EQ(spread.groups(Group::kMp), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(spread.groups(Group::kDp), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
}

TEST(Topology, MatchesThePublishedGroupsOfCluster) {
  const Topology cluster = topology(8, 2, 1, "cluster");
  EXPECT_EQ(cluster.groups(Group::kMp), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(cluster.groups(Group::kDp), (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}}));
}

TEST(Topology, PutsTensorRanksOf32NextToEachOther) {
  const Topology wide = topology(32, 1, 4, "cluster");
  EXPECT_EQ(wide.group(Group::kTp), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(wide.group(Group::kRdp), (std::vector<int>{0, 4, 8, 12, 16, 20, 24, 28}));
}

TEST(Topology, NamesPlacements) {
  EXPECT_EQ(placement_letters("cluster"), "DPT");
  EXPECT_EQ(placement_letters("spread"), "TPD");
  EXPECT_EQ(placement_letters("ptd"), "PTD");
  for (const char* wrong : {"", "DP", "DPTT", "DDT", "Cluster ", "XYZ"}) {
    EXPECT_EQ(placement_letters(wrong), "") << wrong;
  }
}

TEST(Topology, FindsTheRankAtEveryPlace) {
  for_all([](const Topology& t) {
    for (int rank = 0; rank < t.size(); ++rank) ASSERT_EQ(t.rank_at(t.coordinates(rank)), rank);
  });
}

TEST(Topology, SizesMultiplyToTheWorld) {
  for_all([](const Topology& t) {
    ASSERT_EQ(t.pp_size() * t.tp_size() * t.rdp_size(), t.size());
    ASSERT_EQ(t.mp_size() * t.rdp_size(), t.size());
    ASSERT_EQ(t.pp_size() * t.dp_size(), t.size());
  });
}

TEST(Topology, GroupsOfAKindAreDisjointAndCoverTheWorld) {
  for_all([](const Topology& t) {
    for (Group kind : {Group::kWorld, Group::kMp, Group::kPp, Group::kTp, Group::kDp, Group::kRdp,
                       Group::kLocal}) {
      std::multiset<int> seen;
      for (const auto& group : t.groups(kind)) {
        ASSERT_TRUE(std::is_sorted(group.begin(), group.end()));
        ASSERT_EQ(static_cast<int>(group.size()), t.group_size(kind));
        seen.insert(group.begin(), group.end());
      }
      ASSERT_EQ(static_cast<int>(seen.size()), t.size());
      ASSERT_EQ(std::set<int>(seen.begin(), seen.end()).size(), seen.size());
    }
  });
}

TEST(Topology, TensorGroupsLieInsideModelAndDataGroups) {
  for_all([](const Topology& t) {
    for (int rank = 0; rank < t.size(); ++rank) {
      const auto tp = t.group(Group::kTp, rank);
      const auto mp = t.group(Group::kMp, rank);
      const auto dp = t.group(Group::kDp, rank);
      ASSERT_TRUE(std::includes(mp.begin(), mp.end(), tp.begin(), tp.end()));
      ASSERT_TRUE(std::includes(dp.begin(), dp.end(), tp.begin(), tp.end()));
    }
  });
}

TEST(Topology, RankInAGroupIsTheIndexInItsAscendingList) {
  for_all([](const Topology& t) {
    for (Group kind : {Group::kMp, Group::kPp, Group::kTp, Group::kDp, Group::kRdp}) {
      for (int rank = 0; rank < t.size(); ++rank) {
        ASSERT_EQ(t.group(kind, rank).at(t.group_rank(kind, rank)), rank);
      }
    }
    for (int rank = 0; rank < t.size(); ++rank) {
      ASSERT_EQ(t.group_rank(Group::kPp, rank), t.coordinates(rank).pp);
      ASSERT_EQ(t.group_rank(Group::kTp, rank), t.coordinates(rank).tp);
      ASSERT_EQ(t.group_rank(Group::kRdp, rank), t.coordinates(rank).rdp);
    }
  });
}

TEST(Topology, GroupsRanksByMachine) {
  Arrangement arrangement;
  arrangement.world_size = 4;
  arrangement.pp_size = 4;
  arrangement.machine_of_rank = {0, 1, 0, 1};
  const Topology t(arrangement, 3);
  EXPECT_EQ(t.group(Group::kLocal), (std::vector<int>{1, 3}));
  EXPECT_EQ(t.local_rank(), 1);
  EXPECT_EQ(t.local_size(), 2);
}

TEST(Topology, RefusesWhatCannotBe) {
  EXPECT_THROW(topology(6, 4, 1, "cluster"), UsageError);
  EXPECT_THROW(topology(4, 2, 4, "cluster"), UsageError);
  EXPECT_THROW(topology(4, 4, 1, "clusters"), UsageError);
  EXPECT_THROW(topology(4, 4, 1, "cluster", 4), UsageError);
  EXPECT_THROW(topology(0, 1, 1, "cluster"), UsageError);
}

}  // namespace
}  // namespace smp
