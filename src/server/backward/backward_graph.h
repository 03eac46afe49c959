// server/backward/backward_graph.h: the part of an autograd graph that one backward pass touches,
// with the pass's own counts and buffers. Nothing is stored in the nodes, so passes may share a
// graph.
#pragma once

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "server/graph/graph_border.h"
#include "server/graph/node_kind.h"

namespace smp::server {

using NodeIndex = std::uint32_t;
inline constexpr NodeIndex kNoNode = std::numeric_limits<NodeIndex>::max();

/// One node of an autograd graph as one backward pass sees it.
struct GraphNode {
  torch::autograd::Node* node = nullptr;
  torch::autograd::variable_list inputs;  ///< sums of the gradients that came so far
  std::uint32_t first_target = 0;         ///< of its next edges, in BackwardGraph::targets
  std::uint32_t dependencies = 0;         ///< gradients still to come
  int first_capture = -1;                 ///< in BackwardGraph::captures, or -1
  bool execute = true;                    ///< false: at most its tensor hooks run
  NodeKind kind = NodeKind::kOther;
  bool only_root = false;
  bool started_ahead = false;  ///< as a part of a chain (AsyncNode::join_chain)
  bool only_leaves = false;    ///< a leaf, or a node below which there are only leaves
  bool also_leaves = false;    ///< not `only_leaves`, but has an edge to such a node
  bool beyond = false;         ///< the border: what comes is left there
  /// True if backward in one process would reach the node. False if it is reached only through
  /// arguments of remote modules for which these gave no gradient.
  bool reached = false;
  NodeIndex older = kNoNode;  ///< the node that takes what this one leaves (AsyncNode::has_older)

  /// True if the pass has to evaluate the node. LibTorch runs the tensor hooks of a single root
  /// even if nothing is wanted below it.
  bool wanted() const noexcept { return execute || first_capture >= 0 || only_root; }
};

/// A request to return the gradient that arrives at `input` of a node.
struct Capture {
  std::uint32_t input = 0;
  std::uint32_t result = 0;  ///< its place in what the pass returns
  int next = -1;             ///< the node's next capture
};

/// The nodes that one backward pass can reach, found once per pass. Pointers to nodes are valid as
/// long as the caller holds the roots.
class BackwardGraph {
 public:
  /// Finds every node that is reachable from `roots`. With captures and without accumulation, as
  /// for grad(), only nodes that lead to a captured node are executed. Not what is below `border`,
  /// if there is one.
  BackwardGraph(const torch::autograd::edge_list& roots, const torch::autograd::edge_list& captures,
                bool accumulate, const GraphBorder* border = nullptr);

  /// Sets GraphNode::older.
  void find_older_nodes();

  /// Sets GraphNode::only_leaves and also_leaves.
  void find_what_only_leaves_need();

  std::vector<GraphNode> nodes;
  std::vector<NodeIndex> targets;  ///< where each next edge of each node leads, or kNoNode
  std::vector<NodeIndex> roots;    ///< where each root edge leads, or kNoNode
  std::vector<Capture> captures;
  bool runs_user_code = false;  ///< hooks or functions of the user's may be among the nodes

 private:
  /// Up to this many nodes are searched one by one, which suffices for the graph of a layer.
  static constexpr std::size_t kFew = 16;

  NodeIndex target_of(const torch::autograd::Edge& edge);
  NodeIndex find(torch::autograd::Node* node) const;
  NodeIndex add(torch::autograd::Node* node);
  void expand(NodeIndex index, std::uint64_t least_topological_number, const GraphBorder* border);
  void add_captures(const torch::autograd::edge_list& edges);
  void execute_only_towards_captures();
  std::vector<NodeIndex> upwards() const;

  ska::flat_hash_map<torch::autograd::Node*, NodeIndex> index_;  // if there are more than kFew
};

}  // namespace smp::server
