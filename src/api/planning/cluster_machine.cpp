// api/planning/cluster_machine.cpp: places and links of a cluster to stages, replicas and sharers.
#include "api/planning/cluster_machine.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

#include "base/check.h"

namespace smp {
namespace {

using base::Cluster;
using simulate::Machine;

/// Which coordinate differs among the ranks of a group.
enum class Axis : std::uint8_t { kReplicas, kSlices };

/// All groups of ranks that differ along `axis` only. Topology::groups() compares all ranks with
/// all, which takes long for tens of thousands.
std::vector<std::vector<int>> groups_along(Axis axis, const Topology& topology) {
  const bool replicas = axis == Axis::kReplicas;
  const int members = replicas ? topology.rdp_size() : topology.tp_size();
  const int others = replicas ? topology.tp_size() : topology.rdp_size();
  std::vector<std::vector<int>> groups;
  for (int pp = 0; pp < topology.pp_size(); ++pp) {
    for (int other = 0; other < others; ++other) {
      auto& group = groups.emplace_back();
      for (int member = 0; member < members; ++member) {
        group.push_back(topology.rank_at(replicas ? Coordinates{member, pp, other}
                                                  : Coordinates{other, pp, member}));
      }
    }
  }
  return groups;
}

/// The link of a rank to the others of its group, whose collectives go around a ring while those of
/// all other groups do: each part of a tensor passes all members but one, one after the other. One
/// member sends nothing, and any link will do.
Machine::Link ring_link(const Cluster& cluster, const std::vector<std::vector<int>>& groups) {
  const auto& members = groups.front();
  if (members.size() < 2) return {0, 1};
  double slowest = 0;
  for (std::size_t i = 1; i < members.size(); ++i) {
    slowest = std::max(slowest, cluster.path(members[i - 1], members[i]).latency);
  }
  return {slowest * static_cast<double>(members.size() - 1), cluster.ring_bandwidth(groups)};
}

/// The way between each two stages, and the slowest of those within nodes for all else.
void link_stages(const Cluster& cluster, const std::vector<int>& ranks, Machine& machine) {
  machine.pairs.clear();
  Machine::Link slowest{0, std::numeric_limits<double>::infinity()};
  for (const int from : ranks) {
    for (const int to : ranks) {
      const auto path = cluster.path(from, to);
      machine.pairs.push_back({path.latency, path.bytes_per_second});
      if (path.reach == Cluster::Reach::kNetwork) {
        machine.network = machine.pairs.back();
      } else if (path.reach != Cluster::Reach::kSelf) {
        slowest.latency = std::max(slowest.latency, path.latency);
        slowest.bytes_per_second = std::min(slowest.bytes_per_second, path.bytes_per_second);
      }
    }
  }
  if (std::isfinite(slowest.bytes_per_second)) {
    machine.latency = slowest.latency;
    machine.bytes_per_second = slowest.bytes_per_second;
  }
  for (std::size_t stage = 0; stage < ranks.size(); ++stage) {  // nothing is sent there
    machine.pairs[stage * (ranks.size() + 1)] = {machine.latency, machine.bytes_per_second};
  }
}

}  // namespace

std::optional<Cluster> planned_cluster(const Topology& topology) {
  const char* name = std::getenv(kPlanClusterVariable);
  if (name == nullptr || *name == '\0') return std::nullopt;
  auto cluster = Cluster::named(name);
  SMP_REQUIRE(cluster.ranks() == topology.size(), "cluster ", cluster.name(), " has ",
              cluster.ranks(), " ranks, and the job ", topology.size());
  return cluster;
}

void place_on(const Cluster& cluster, const Topology& topology, Machine& machine) {
  const auto ranks = topology.group(Group::kPp);
  machine.direct_links.clear();
  machine.places.clear();
  bool apart = false;
  for (const int rank : ranks) {
    const auto place = cluster.place_of(rank);
    machine.places.push_back({place.node, 0, place.adapter});
    apart |= place.node != machine.places.front().node;
  }
  if (!apart) machine.places.clear();
  link_stages(cluster, ranks, machine);
  machine.across_sockets = {machine.latency, machine.bytes_per_second};
  machine.replicas.link = ring_link(cluster, groups_along(Axis::kReplicas, topology));
  machine.sharers.link = ring_link(cluster, groups_along(Axis::kSlices, topology));
}

}  // namespace smp
