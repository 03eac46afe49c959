// server/backward/backward_graph.cpp: walks the graph and decides which nodes a pass executes.
#include "server/backward/backward_graph.h"

#include <algorithm>
#include <numeric>
#include <typeinfo>

#include "server/backward/executor.h"
#include "server/graph/leaf_guards.h"

namespace smp::server {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;

/// Returns the least topological number of a captured node. A node's number exceeds those of all
/// nodes below it, so no node with a lower number leads to a capture.
std::uint64_t least_topological_number(const edge_list& captures) {
  auto least = std::numeric_limits<std::uint64_t>::max();
  for (const auto& edge : captures) {
    if (edge.is_valid()) least = std::min(least, edge.function->topological_nr());
  }
  return least;
}

bool has_hooks(Node& node) {
  const auto& before = node.pre_hooks();
  const bool guarded = before.size() == 1 && typeid(*before.front()) == typeid(LeafGuard);
  return !node.tensor_pre_hooks().empty() || !(before.empty() || guarded) ||
         !node.post_hooks().empty() || node.tensor_post_acc_grad_hooks() != nullptr;
}

/// True if the node has hooks, or may be a custom function of the user's. Nodes that LibTorch and
/// this library make run no other user code.
bool may_run_user_code(const GraphNode& entry) {
  auto& node = *entry.node;
  if (has_hooks(node)) return true;
  return entry.kind == NodeKind::kOther && node.num_outputs() > 0 && !node.is_traceable();
}

}  // namespace

BackwardGraph::BackwardGraph(const edge_list& root_edges, const edge_list& capture_edges,
                             bool accumulate, const GraphBorder* border) {
  const bool only_captures = !accumulate && !capture_edges.empty();
  const auto least = only_captures ? least_topological_number(capture_edges) : 0;
  nodes.reserve(kFew);
  targets.reserve(kFew);
  for (const auto& edge : root_edges) roots.push_back(target_of(edge));
  for (NodeIndex i = 0; i < nodes.size(); ++i) expand(i, least, border);
  add_captures(capture_edges);
  if (only_captures) execute_only_towards_captures();
  if (roots.size() == 1 && roots[0] != kNoNode) nodes[roots[0]].only_root = true;
}

NodeIndex BackwardGraph::find(Node* node) const {
  if (nodes.size() > kFew) {
    const auto found = index_.find(node);
    return found == index_.end() ? kNoNode : found->second;
  }
  for (NodeIndex i = 0; i < nodes.size(); ++i) {
    if (nodes[i].node == node) return i;
  }
  return kNoNode;
}

NodeIndex BackwardGraph::add(Node* node) {
  const auto index = static_cast<NodeIndex>(nodes.size());
  if (index == kFew) {
    for (NodeIndex i = 0; i < index; ++i) index_.emplace(nodes[i].node, i);
  }
  if (index >= kFew) index_.emplace(node, index);
  nodes.emplace_back().node = node;
  return index;
}

NodeIndex BackwardGraph::target_of(const Edge& edge) {
  if (!edge.is_valid()) return kNoNode;
  auto index = find(edge.function.get());
  if (index == kNoNode) index = add(edge.function.get());
  ++nodes[index].dependencies;
  return index;
}

void BackwardGraph::expand(NodeIndex index, std::uint64_t least, const GraphBorder* border) {
  Node& node = *nodes[index].node;
  nodes[index].first_target = static_cast<std::uint32_t>(targets.size());
  if (border != nullptr && border->contains(node)) {
    nodes[index].beyond = true;
    targets.resize(targets.size() + node.num_outputs(), kNoNode);
    return;
  }
  nodes[index].kind = kind_of(node);
  runs_user_code = runs_user_code || may_run_user_code(nodes[index]);
  if (least > 0 && node.topological_nr() < least) {
    targets.resize(targets.size() + node.num_outputs(), kNoNode);
    return;
  }
  for (const auto& edge : node.next_edges()) {
    const auto target = target_of(edge);
    targets.push_back(target);
  }
}

void BackwardGraph::add_captures(const edge_list& edges) {
  captures.resize(edges.size());
  for (std::uint32_t i = 0; i < edges.size(); ++i) {
    const auto index = find(edges[i].function.get());
    if (index == kNoNode) continue;
    auto& node = nodes[index];
    captures[i] = {edges[i].input_nr, i, node.first_capture};
    node.first_capture = static_cast<int>(i);
  }
}

/// Returns all nodes in an order in which each comes after the nodes below it.
std::vector<NodeIndex> BackwardGraph::upwards() const {
  std::vector<NodeIndex> order(nodes.size());
  std::iota(order.begin(), order.end(), NodeIndex{0});
  std::sort(order.begin(), order.end(), [this](NodeIndex a, NodeIndex b) {
    return nodes[a].node->topological_nr() < nodes[b].node->topological_nr();
  });
  return order;
}

void BackwardGraph::execute_only_towards_captures() {
  for (const auto index : upwards()) {
    auto& node = nodes[index];
    const auto first = targets.begin() + node.first_target;
    node.execute = std::any_of(first, first + node.node->num_outputs(), [this](NodeIndex target) {
      return target != kNoNode && nodes[target].wanted();
    });
  }
}

void BackwardGraph::find_older_nodes() {
  for (auto& entry : nodes) {
    if (entry.kind != NodeKind::kAsync) continue;  // what is beyond the border has no kind
    if (!static_cast<const AsyncNode*>(entry.node)->has_older()) continue;
    entry.older = targets[entry.first_target + entry.node->num_outputs() - 1];
  }
}

/// Nodes that wait for other ranks, and nodes without edges that are no leaves (the arguments of an
/// execution), do not count as leaves: other work waits for them.
void BackwardGraph::find_what_only_leaves_need() {
  for (const auto index : upwards()) {
    auto& entry = nodes[index];
    if (entry.node->num_outputs() == 0) {
      entry.only_leaves = entry.kind == NodeKind::kLeaf;
      continue;
    }
    std::uint32_t leaves = 0, others = 0;
    for (std::uint32_t i = 0; i < entry.node->num_outputs(); ++i) {
      const auto target = targets[entry.first_target + i];
      if (target != kNoNode) ++(nodes[target].only_leaves ? leaves : others);
    }
    entry.only_leaves = others == 0 && !waits_for_others(entry.kind);
    entry.also_leaves = leaves > 0 && !entry.only_leaves;
  }
}

}  // namespace smp::server
