// server/graph/graph_border.h: where a backward pass ends although the graph goes on, because
// another pass goes on there.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <utility>

#include "server/graph/special_nodes.h"

namespace smp::server {

/// Gradients on their way into nodes that a pass has not run.
struct LeftGradients {
  edge_list edges;          ///< into these nodes
  variable_list gradients;  ///< undefined: the node is reached all the same
};

/// All nodes below some edges, and the gradients that a pass from elsewhere brings to them. The
/// edges' owner keeps the nodes. Threads: the rank's.
class GraphBorder {
 public:
  explicit GraphBorder(const edge_list& edges);

  bool contains(const Node& node) const { return nodes_.count(&node) != 0; }
  /// Keeps what has come to the inputs of one of the nodes, as sums; if no gradient has, that it
  /// was reached.
  void keep(Node& node, variable_list&& inputs);
  LeftGradients take() { return std::move(left_); }

 private:
  void add(Node& node, std::uint32_t input, at::Tensor&& gradient);

  ska::flat_hash_set<const Node*> nodes_;
  LeftGradients left_;
};

}  // namespace smp::server
