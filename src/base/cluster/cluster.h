// base/cluster/cluster.h: many nodes of one kind: where each rank of a job is, and how fast two of
// them reach each other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/cluster/node_type.h"
#include "base/cluster/torus.h"

namespace smp::base {

/// Equal nodes, with a rank on every core (or GPU) of theirs: ranks fill a device, then the next
/// one of the node, then the next node. Immutable.
class Cluster {
 public:
  /// Returns the cluster of that name, as "trn1.32xlarge:64": 64 nodes of that kind.
  /// @throws UsageError  an unknown kind, with the known ones; no number, or one that is too large
  static Cluster named(std::string_view name);

  const NodeType& type() const { return *type_; }
  int nodes() const { return nodes_; }
  int ranks() const { return nodes_ * type_->ranks(); }
  std::string name() const;

  /// The place of a rank.
  struct Place {
    int node = 0;
    int device = 0;   ///< of the node
    int adapter = 0;  ///< of the node: the one next to the device
    bool operator==(const Place&) const = default;
  };
  /// @param rank  from 0 to ranks() - 1, as everywhere below
  Place place_of(int rank) const;

  /// How far a message goes.
  enum class Reach : std::uint8_t {
    kSelf,      ///< nowhere
    kDevice,    ///< to another rank of the device
    kInstance,  ///< to another device of the machine
    kServer,    ///< to another machine of the node
    kNetwork,   ///< to another node
  };
  /// The way from one rank to another when nobody else sends.
  struct Path {
    Reach reach = Reach::kSelf;
    int hops = 0;                 ///< links between devices; 1 at a switch
    double latency = 0;           ///< seconds, assumed
    double bytes_per_second = 0;  ///< one way; of kSelf infinite
  };
  /// The same for (a, b) as for (b, a).
  Path path(int from, int to) const;

  /// Returns the bytes/s that each rank sends if the ranks of every group form a ring, in the order
  /// given, and all at once send half of their bytes to the next rank and half to the one before:
  /// as collectives of large tensors do. The wire that takes longest limits all. Infinite if nobody
  /// has anybody to send to.
  /// @param groups  disjoint sets of ranks
  double ring_bandwidth(const std::vector<std::vector<int>>& groups) const;

 private:
  Cluster(const NodeType& type, int nodes);
  Reach reach(const Place& from, const Place& to) const;

  const NodeType* type_;  // of the table
  int nodes_;
  Torus torus_;
};

}  // namespace smp::base
