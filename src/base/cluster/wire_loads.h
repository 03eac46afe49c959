// base/cluster/wire_loads.h: how many bytes pass each wire of a cluster, and which one takes
// longest.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "base/cluster/cluster.h"

namespace smp::base {

/// The bytes that pass the wires between ranks: the memory of a device, a link between neighbours
/// in one direction, a device's port at a switch, out or in, a network adapter, out or in.
class WireLoads {
 public:
  /// Whether a message passes the adapter next to its device, or all of a node together, as the
  /// libraries of collectives spread theirs.
  enum class Adapters : std::uint8_t { kEach, kPooled };
  /// @param type, torus  are referred to
  WireLoads(const NodeType& type, const Torus& torus, Adapters adapters)
      : type_(type), torus_(torus), adapters_(adapters) {}

  /// Adds `bytes` from a rank at one place to another rank at the other.
  void add(const Cluster::Place& from, const Cluster::Place& to, double bytes);
  /// Returns the seconds of the wire that takes longest, at the bandwidth that is reached; 0 if
  /// nothing passes any.
  double most_seconds() const;

 private:
  enum class Kind : std::uint8_t { kMemory, kLink, kPortOut, kPortIn, kAdapterOut, kAdapterIn };
  using Wire = std::tuple<Kind, int, int, int>;  // node, device or adapter, device at the end

  void pass(const Wire& wire, double bytes, double bandwidth);

  const NodeType& type_;
  const Torus& torus_;
  const Adapters adapters_;
  std::map<Wire, double> seconds_;
};

}  // namespace smp::base
