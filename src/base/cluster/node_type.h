// base/cluster/node_type.h: kinds of machines that clusters are made of, as a table: what a rank
// computes on, and how ranks reach each other.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace smp::base {

/// The rings of a torus in one dimension.
struct Rings {
  int size = 1;     ///< devices of a ring
  double link = 0;  ///< bytes/s of the link between two neighbours, one way
};

/// A machine, or machines that one fabric of their devices joins (an UltraServer). Bandwidths are
/// those that are published, one way; what is reached of them is assumed (cluster.h).
struct NodeType {
  std::string name;    ///< "trn1.32xlarge"
  std::string about;   ///< "16 Trainium, 4 x 4 torus"
  std::string device;  ///< what a rank computes on (base/machine/device.h)
  int instances = 1;   ///< machines that the node consists of, with equally many devices each
  int devices = 1;     ///< devices of the node
  int ranks_of_device = 1;
  /// Bytes/s from one rank of a device to another, one way; all ranks of the device share it.
  double within_device = 0;
  /// The dimensions of the torus of the devices, outermost first; empty: they form none.
  std::vector<Rings> torus = {};
  /// Bytes/s of each device at a switch that joins all of them, one way; 0: there is none.
  double switch_port = 0;
  int adapters = 1;    ///< network adapters of the node, each next to equally many devices
  double adapter = 0;  ///< bytes/s of each, one way

  int ranks() const { return devices * ranks_of_device; }
};

/// Returns all known kinds.
[[nodiscard]] const std::vector<NodeType>& node_types();
/// Returns the kind of that name, or nullptr if there is none.
[[nodiscard]] const NodeType* find_node_type(std::string_view name);
[[nodiscard]] std::vector<std::string> node_type_names();

}  // namespace smp::base
