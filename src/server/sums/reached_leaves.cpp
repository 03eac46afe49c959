// server/sums/reached_leaves.cpp: depth first, every node of a graph once.
#include "server/sums/reached_leaves.h"

#include <utility>

#include "server/graph/special_nodes.h"

namespace smp::server {

void ReachedLeaves::clear() noexcept {
  pairs_.clear();
  seen_.clear();
  walks_ = 0;
}

void ReachedLeaves::walk(std::uint32_t execution, const torch::autograd::edge_list& roots) {
  if (roots.empty()) return;
  ++walks_;
  for (const auto& root : roots) visit(root);
  while (!pending_nodes_.empty()) {
    auto& node = *pending_nodes_.back();
    pending_nodes_.pop_back();
    if (auto* leaf = as_leaf(node)) pairs_.push_back({numbers_.of(leaf->variable), execution});
    for (const auto& edge : node.next_edges()) visit(edge);
  }
}

void ReachedLeaves::visit(const torch::autograd::Edge& edge) {
  if (!edge.is_valid() || std::exchange(seen_[edge.function.get()], walks_) == walks_) return;
  pending_nodes_.push_back(edge.function.get());
}

}  // namespace smp::server
