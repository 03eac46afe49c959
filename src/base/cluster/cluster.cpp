// base/cluster/cluster.cpp: what is reached of published bandwidths, and how long messages take
// beside their bytes.
#include "base/cluster/cluster.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/check.h"
#include "base/cluster/wire_loads.h"
#include "base/text/edit_distance.h"

namespace smp::base {
namespace {

/// Assumed, since no source gives one: seconds until a message within a device has begun, that each
/// link between devices adds, and between nodes.
constexpr double kDeviceLatency = 3e-6, kHopLatency = 1e-6, kNetworkLatency = 20e-6;

/// A job larger than this is refused elsewhere too (config_keys.h).
constexpr int kMostRanks = 1 << 16;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

std::string known_types() {
  std::string list;
  for (const auto& name : node_type_names()) list += (list.empty() ? "" : ", ") + name;
  return list;
}

const NodeType& type_named(std::string_view name) {
  const auto* type = find_node_type(name);
  SMP_REQUIRE(type != nullptr, "there is no cluster of \"", name, "\"",
              did_you_mean(name, node_type_names()), "; known are ", known_types(),
              ", each with the number of nodes, as trn1.32xlarge:64");
  return *type;
}

std::vector<int> sizes_of(const NodeType& type) {
  std::vector<int> sizes;
  for (const Rings& rings : type.torus) sizes.push_back(rings.size);
  return sizes;
}

}  // namespace

Cluster::Cluster(const NodeType& type, int nodes)
    : type_(&type), nodes_(nodes), torus_(sizes_of(type)) {}

Cluster Cluster::named(std::string_view name) {
  const auto colon = std::min(name.find(':'), name.size());
  const auto& type = type_named(name.substr(0, colon));
  const auto number = name.substr(std::min(colon + 1, name.size()));
  int nodes = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), nodes);
  const int most = kMostRanks / type.ranks();
  SMP_REQUIRE(
      error == std::errc() && end == number.data() + number.size() && nodes >= 1 && nodes <= most,
      "cluster \"", name, "\": expected the number of nodes after the kind, as ", type.name,
      ":4, from 1 to ", most, " (", kMostRanks, " ranks at most, ", type.ranks(), " a node)");
  return {type, nodes};
}

std::string Cluster::name() const { return concat(type_->name, ':', nodes_); }

Cluster::Place Cluster::place_of(int rank) const {
  SMP_ASSERT(rank >= 0 && rank < ranks(), rank, " of ", name());
  const int device = rank % type_->ranks() / type_->ranks_of_device;
  return {rank / type_->ranks(), device, device * type_->adapters / type_->devices};
}

Cluster::Reach Cluster::reach(const Place& from, const Place& to) const {
  if (from.node != to.node) return Reach::kNetwork;
  if (from.device == to.device) return Reach::kDevice;
  const int devices = type_->devices / type_->instances;
  return from.device / devices == to.device / devices ? Reach::kInstance : Reach::kServer;
}

Cluster::Path Cluster::path(int from, int to) const {
  if (from == to) return {Reach::kSelf, 0, 0, kInfinite};
  const auto source = place_of(from), target = place_of(to);
  Path path{reach(source, target), 0, kNetworkLatency, kInfinite};
  if (path.reach != Reach::kNetwork) {
    if (source.device != target.device) {
      path.hops = type_->torus.empty() ? 1 : torus_.distance(source.device, target.device);
    }
    path.latency = kDeviceLatency + kHopLatency * path.hops;
  }
  WireLoads wires(*type_, torus_, WireLoads::Adapters::kEach);
  wires.add(source, target, 1);
  path.bytes_per_second = 1 / wires.most_seconds();
  return path;
}

double Cluster::ring_bandwidth(const std::vector<std::vector<int>>& groups) const {
  WireLoads wires(*type_, torus_, WireLoads::Adapters::kPooled);
  for (const auto& group : groups) {
    for (std::size_t i = 0; i < group.size() && group.size() > 1; ++i) {
      const auto from = place_of(group[i]), to = place_of(group[(i + 1) % group.size()]);
      wires.add(from, to, 0.5);
      wires.add(to, from, 0.5);
    }
  }
  return 1 / wires.most_seconds();
}

}  // namespace smp::base
