// Clusters by name, ways between their ranks, and what rings of ranks reach that all send at once,
// against formulas.
#include "base/cluster/cluster.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/machine/device.h"
#include "smp/error.h"

namespace smp::base {
namespace cluster_test {

using testing::AllOf;
using testing::HasSubstr;
using Reach = Cluster::Reach;

constexpr double kGibi = 1073741824;
constexpr double kReachedLink = 0.8, kReachedAdapter = 0.9;

std::string refusal(const std::string& name) {
  try {
    Cluster::named(name);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "none";
}

TEST(Cluster, HasARankOnEveryCoreOfItsNodes) {
  const auto hlat = Cluster::named("trn1.32xlarge:64");
  EXPECT_EQ(hlat.ranks(), 2048);
  EXPECT_EQ(hlat.name(), "trn1.32xlarge:64");
  EXPECT_EQ(hlat.place_of(0), (Cluster::Place{0, 0, 0}));
  EXPECT_EQ(hlat.place_of(3), (Cluster::Place{0, 1, 0})) << "an adapter of two chips";
  EXPECT_EQ(hlat.place_of(31), (Cluster::Place{0, 15, 7}));
  EXPECT_EQ(hlat.place_of(2047), (Cluster::Place{63, 15, 7}));
  EXPECT_EQ(Cluster::named("trn2.48xlarge:2").ranks(), 128);
  EXPECT_EQ(Cluster::named("trn2-ultraserver:1").ranks(), 256);
  EXPECT_EQ(Cluster::named("trn3-gen2-ultraserver:1").ranks(), 576);
  EXPECT_EQ(Cluster::named("perlmutter:1024").ranks(), 4096);
  EXPECT_EQ(Cluster::named("frontier:1024").ranks(), 8192);
}

TEST(Cluster, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(refusal("trn1.32xlage:64"),
              AllOf(HasSubstr("there is no cluster of \"trn1.32xlage\""),
                    HasSubstr("did you mean \"trn1.32xlarge\"?"),
                    HasSubstr("known are trn1.2xlarge, trn1.32xlarge, trn1n.32xlarge, ")));
  EXPECT_THAT(refusal(""), HasSubstr("there is no cluster of \"\""));
  for (const char* name : {"trn1.32xlarge", "trn1.32xlarge:", "trn1.32xlarge:0", "trn1.32xlarge:-1",
                           "trn1.32xlarge:4x", "trn1.32xlarge:4 ", "trn1.32xlarge:2049",
                           "trn1.32xlarge:99999999999999"}) {
    EXPECT_THAT(refusal(name),
                AllOf(HasSubstr(name), HasSubstr("as trn1.32xlarge:4, from 1 to 2048")));
  }
  EXPECT_EQ(refusal("trn1.32xlarge:2048"), "none");
}

TEST(NodeTypes, LookLikeMachines) {
  std::set<std::string> names;
  for (const auto& type : node_types()) {
    SCOPED_TRACE(type.name);
    EXPECT_TRUE(names.insert(type.name).second);
    EXPECT_EQ(find_node_type(type.name), &type);
    EXPECT_FALSE(type.about.empty());
    EXPECT_NE(find_device(type.device), nullptr);
    EXPECT_EQ(type.devices % type.instances, 0);
    int on_torus = 1;
    for (const auto& rings : type.torus) on_torus *= rings.size;
    EXPECT_TRUE(type.torus.empty() || on_torus == type.devices);
    EXPECT_EQ(type.devices > 1, !type.torus.empty() || type.switch_port > 0) << "joined, once";
    EXPECT_TRUE(type.torus.empty() || type.switch_port == 0);
    EXPECT_GT(type.adapter, 0);
    EXPECT_TRUE(type.ranks_of_device == 1 || type.within_device > 0);
  }
  EXPECT_EQ(find_node_type("trn1"), nullptr);
}

/// Of the links of a device, both ways together.
double links_of_device(const NodeType& type) {
  double sum = 2 * type.switch_port;
  for (const auto& rings : type.torus) sum += 2 * 2 * rings.link;
  return sum;
}

TEST(NodeTypes, LinksOfADeviceMakeThePublishedBandwidth) {
  const auto of_device = [](const char* name) { return links_of_device(*find_node_type(name)); };
  EXPECT_DOUBLE_EQ(of_device("trn1.32xlarge"), 384 * kGibi);
  EXPECT_DOUBLE_EQ(of_device("trn1n.32xlarge"), 768 * kGibi);
  EXPECT_DOUBLE_EQ(of_device("trn2.48xlarge"), 1024e9);
  EXPECT_DOUBLE_EQ(of_device("trn2-ultraserver"), 1280e9) << "of its chip page";
  EXPECT_DOUBLE_EQ(of_device("trn3-gen1-ultraserver"), 2048 * kGibi);
  EXPECT_DOUBLE_EQ(of_device("p4d.24xlarge"), 600e9);
  EXPECT_DOUBLE_EQ(of_device("trn1.2xlarge"), 0);
}

TEST(NodeTypes, AdaptersMakeThePublishedNetwork) {
  const auto gigabit = [](const char* name) {
    const auto& type = *find_node_type(name);
    return 8e-9 * type.adapters * type.adapter;
  };
  EXPECT_DOUBLE_EQ(gigabit("trn1.2xlarge"), 25);
  EXPECT_DOUBLE_EQ(gigabit("trn1.32xlarge"), 800);
  EXPECT_DOUBLE_EQ(gigabit("trn1n.32xlarge"), 1600);
  EXPECT_DOUBLE_EQ(gigabit("trn2.48xlarge"), 3200);
  EXPECT_DOUBLE_EQ(gigabit("trn2-ultraserver"), 4 * 3200);
  EXPECT_DOUBLE_EQ(gigabit("trn3-gen1-ultraserver"), 12800);
  EXPECT_DOUBLE_EQ(gigabit("trn3-gen2-ultraserver"), 28800);
  EXPECT_DOUBLE_EQ(gigabit("p4d.24xlarge"), 400);
  for (const char* name : {"perlmutter", "frontier", "alps"}) EXPECT_DOUBLE_EQ(gigabit(name), 800);
}

/// The device of a rank computes and stores its share of what the machine is said to have.
TEST(NodeTypes, DevicesMakeThePublishedComputeAndMemory) {
  const auto of_node = [](const char* name) {
    const auto& type = *find_node_type(name);
    const auto& device = *find_device(type.device);
    return std::pair(1e-12 * type.ranks() * device.peak.back(),
                     type.ranks() * static_cast<double>(device.memory_bytes));
  };
  EXPECT_DOUBLE_EQ(of_node("trn1.32xlarge").first, 3040);
  EXPECT_DOUBLE_EQ(of_node("trn1.32xlarge").second, 512 * kGibi);
  EXPECT_DOUBLE_EQ(of_node("trn2.48xlarge").first, 16 * 667);
  EXPECT_DOUBLE_EQ(of_node("trn2.48xlarge").second, 16 * 96 * kGibi);
  EXPECT_DOUBLE_EQ(of_node("trn3-gen1-ultraserver").first, 42944);
  EXPECT_DOUBLE_EQ(of_node("trn3-gen2-ultraserver").first, 96624);
  EXPECT_DOUBLE_EQ(of_node("trn3-gen2-ultraserver").second, 20736 * kGibi);
  EXPECT_DOUBLE_EQ(of_node("p4d.24xlarge").first, 2496);
  EXPECT_DOUBLE_EQ(of_node("p4d.24xlarge").second, 320e9);
}

TEST(Paths, GoByPlaceAndAreTheSameBothWays) {
  for (const auto& type : node_types()) {
    const auto cluster = Cluster::named(type.name + ":2");
    SCOPED_TRACE(type.name);
    for (int from = 0; from < cluster.ranks(); from += cluster.ranks() / 48 + 1) {
      for (int to = 0; to < cluster.ranks(); ++to) {
        const auto path = cluster.path(from, to), back = cluster.path(to, from);
        ASSERT_EQ(path.reach, back.reach) << from << ' ' << to;
        ASSERT_EQ(path.hops, back.hops) << from << ' ' << to;
        ASSERT_EQ(path.latency, back.latency) << from << ' ' << to;
        ASSERT_EQ(path.bytes_per_second, back.bytes_per_second) << from << ' ' << to;
        ASSERT_GT(path.bytes_per_second, 1e9);
        ASSERT_EQ(path.reach == Reach::kSelf, from == to);
        const bool apart = cluster.place_of(from).node != cluster.place_of(to).node;
        ASSERT_EQ(path.reach == Reach::kNetwork, apart);
      }
    }
  }
}

TEST(Paths, OnATorusAreAsLongAsTheHops) {
  const auto cluster = Cluster::named("trn1.32xlarge:2");
  const auto pair = cluster.path(0, 1), near = cluster.path(0, 2), far = cluster.path(0, 20);
  EXPECT_EQ(pair.reach, Reach::kDevice);
  EXPECT_EQ(pair.hops, 0);
  EXPECT_DOUBLE_EQ(pair.bytes_per_second, kReachedLink * 410 * kGibi);
  EXPECT_EQ(near.reach, Reach::kInstance);
  EXPECT_EQ(near.hops, 1);
  EXPECT_DOUBLE_EQ(near.bytes_per_second, kReachedLink * 48 * kGibi);
  EXPECT_EQ(far.hops, 4) << "chip 10 is opposite";
  EXPECT_DOUBLE_EQ(far.bytes_per_second, near.bytes_per_second) << "no slower, but later";
  EXPECT_NEAR(far.latency - near.latency, 3 * (near.latency - pair.latency), 1e-12);
  const auto efa = cluster.path(0, 32);
  EXPECT_EQ(efa.reach, Reach::kNetwork);
  EXPECT_DOUBLE_EQ(efa.bytes_per_second, kReachedAdapter * 12.5e9);
  EXPECT_GT(efa.latency, far.latency);
}

TEST(Paths, OfAnUltraServerGoOverItsRing) {
  const auto cluster = Cluster::named("trn2-ultraserver:1");
  const auto in_machine = cluster.path(0, 4), to_next = cluster.path(0, 64),
             to_last = cluster.path(0, 192), both = cluster.path(0, 68);
  EXPECT_EQ(in_machine.reach, Reach::kInstance);
  EXPECT_DOUBLE_EQ(in_machine.bytes_per_second, kReachedLink * 128e9);
  EXPECT_EQ(to_next.reach, Reach::kServer);
  EXPECT_EQ(to_next.hops, 1);
  EXPECT_DOUBLE_EQ(to_next.bytes_per_second, kReachedLink * 64e9);
  EXPECT_EQ(to_last.hops, 1) << "a ring";
  EXPECT_EQ(both.hops, 2);
  EXPECT_DOUBLE_EQ(both.bytes_per_second, to_next.bytes_per_second) << "the slower link";
  EXPECT_EQ(cluster.path(0, 128).hops, 2);
}

TEST(Paths, AtASwitchAreAllAlike) {
  const auto cluster = Cluster::named("trn3-gen1-ultraserver:1");
  EXPECT_EQ(cluster.path(0, 4).reach, Reach::kInstance);
  EXPECT_EQ(cluster.path(0, 64).reach, Reach::kServer);
  for (const int to : {4, 60, 64, 252}) {
    EXPECT_EQ(cluster.path(0, to).hops, 1);
    EXPECT_DOUBLE_EQ(cluster.path(0, to).bytes_per_second, kReachedLink * 1024 * kGibi);
  }
}

std::vector<int> ranks_from(int first, int count, int stride = 1) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) ranks[static_cast<std::size_t>(i)] = first + i * stride;
  return ranks;
}

/// Two send each other everything; both directions of a device's memory are one wire.
TEST(Rings, OfTwoAreThePathBetweenThem) {
  const auto cluster = Cluster::named("trn2-ultraserver:2");
  for (const int to : {1, 4, 64, 128}) {
    const auto path = cluster.path(0, to);
    const double share = path.reach == Reach::kDevice ? 0.5 : 1;
    EXPECT_DOUBLE_EQ(cluster.ring_bandwidth({{0, to}}), share * path.bytes_per_second) << to;
  }
  EXPECT_DOUBLE_EQ(cluster.ring_bandwidth({{0, 300}}), kReachedAdapter * 64 * 25e9)
      << "over all adapters";
  EXPECT_TRUE(std::isinf(cluster.ring_bandwidth({{0}, {5}})));
  EXPECT_TRUE(std::isinf(cluster.ring_bandwidth({})));
}

/// Eight cores are a row of the torus, which is a ring of four chips: every link carries half of a
/// core's bytes, each way.
TEST(Rings, OfEightCoresUseBothWaysOfARow) {
  const auto cluster = Cluster::named("trn1.32xlarge:2");
  std::vector<std::vector<int>> groups;
  for (int first = 0; first < cluster.ranks(); first += 8) groups.push_back(ranks_from(first, 8));
  EXPECT_NEAR(cluster.ring_bandwidth(groups), 2 * kReachedLink * 48 * kGibi, 1);
  EXPECT_NEAR(cluster.ring_bandwidth({groups.front()}), 2 * kReachedLink * 48 * kGibi, 1)
      << "alone no faster";
}

/// In the order of their numbers the chips of a torus are no ring: from row to row it is two links,
/// which others use too.
TEST(Rings, OfAWholeMachineCrossTheRows) {
  const auto cluster = Cluster::named("trn1.32xlarge:1");
  std::map<std::pair<int, int>, double> loads;
  const Torus torus({4, 4});
  for (int chip = 0; chip < 16; ++chip) {
    for (const auto& hop : torus.route(chip, (chip + 1) % 16)) loads[{hop.from, hop.to}] += 0.5;
    for (const auto& hop : torus.route((chip + 1) % 16, chip)) loads[{hop.from, hop.to}] += 0.5;
  }
  double most = 0;
  for (const auto& [link, load] : loads) most = std::max(most, load);
  EXPECT_NEAR(cluster.ring_bandwidth({ranks_from(0, 32)}), kReachedLink * 48 * kGibi / most, 1);
}

/// The model of AxoNN (equation 7): groups whose members are `inner` ranks apart share the network
/// of a node, of which each gets 1 / min(ranks of a node, inner). Smaller steps are within nodes,
/// whose links may be narrower.
void expect_shares_of_the_network(const Cluster& cluster, int least) {
  const auto& type = cluster.type();
  const double node = kReachedAdapter * type.adapters * type.adapter;
  for (int inner = least; inner <= 2 * type.ranks(); inner *= 2) {
    std::vector<std::vector<int>> groups;
    for (int first = 0; first < inner; ++first) {
      groups.push_back(ranks_from(first, cluster.ranks() / inner, inner));
    }
    EXPECT_NEAR(cluster.ring_bandwidth(groups), node / std::min(type.ranks(), inner), 1)
        << cluster.name() << ", " << inner;
  }
}

TEST(Rings, BetweenNodesShareTheirNetworkAsAxonnSays) {
  expect_shares_of_the_network(Cluster::named("perlmutter:16"), 1);
  expect_shares_of_the_network(Cluster::named("alps:16"), 1);
  expect_shares_of_the_network(Cluster::named("frontier:16"), 4);
  expect_shares_of_the_network(Cluster::named("trn1.32xlarge:16"), 16);
}

/// As HLAT: four replicas of eight cores a machine, so eight rings leave it.
TEST(Rings, OfReplicasOnATorus) {
  const auto cluster = Cluster::named("trn1.32xlarge:64");
  std::vector<std::vector<int>> groups;
  for (int slice = 0; slice < 8; ++slice) groups.push_back(ranks_from(slice, 256, 8));
  EXPECT_NEAR(cluster.ring_bandwidth(groups), kReachedAdapter * 100e9 / 8, 1);
}

}  // namespace cluster_test
}  // namespace smp::base
