// server/graph/inner_outputs.cpp: down from the roots, as far as the lowest output.
#include "server/graph/inner_outputs.h"

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "server/graph/special_nodes.h"

namespace smp::server {
namespace {

using torch::autograd::Edge;

std::vector<Edge> edges_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Edge> edges;
  for (const auto& tensor : tensors) {
    const bool has = tensor.defined() && tensor.requires_grad();
    edges.push_back(has ? torch::autograd::impl::gradient_edge(tensor) : Edge());
  }
  return edges;
}

std::size_t num_valid(const std::vector<Edge>& edges) {
  return static_cast<std::size_t>(
      std::count_if(edges.begin(), edges.end(), [](const Edge& edge) { return edge.is_valid(); }));
}

class Walk {
 public:
  explicit Walk(const std::vector<Edge>& outputs) : outputs_(outputs), inner_(outputs.size()) {
    for (const auto& edge : outputs) {
      if (edge.is_valid()) lowest_ = std::min(lowest_, edge.function->topological_nr());
    }
  }

  void from(const Edge& root) {
    if (!root.is_valid()) return;
    visit(*root.function);
    while (!pending_.empty()) {
      auto& node = *pending_.back();
      pending_.pop_back();
      for (const auto& edge : node.next_edges()) follow(edge);
    }
  }

  /// Returns the flags. An output of a remote module that the module has called is asked about at
  /// its node, because that module's owner knows of it.
  TensorFlags result() {
    TensorFlags flags;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const auto& edge = outputs_[i];
      const auto* remote =
          edge.is_valid() ? dynamic_cast<const AsyncNode*>(edge.function.get()) : nullptr;
      flags.push_back(inner_[i] || (remote != nullptr && remote->uses_itself(edge.input_nr)));
    }
    return flags.any() ? flags : TensorFlags();
  }

 private:
  void follow(const Edge& edge) {
    if (!edge.is_valid()) return;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      if (outputs_[i] == edge) inner_[i] = true;
    }
    visit(*edge.function);
  }
  /// Visits a node, unless it is too low to lead to an output: a node's topological number exceeds
  /// those of all nodes below it.
  void visit(Node& node) {
    if (node.topological_nr() <= lowest_ || std::exchange(seen_[&node], true)) return;
    pending_.push_back(&node);
  }

  const std::vector<Edge>& outputs_;
  std::vector<bool> inner_;
  std::uint64_t lowest_ = std::numeric_limits<std::uint64_t>::max();
  ska::flat_hash_map<Node*, bool> seen_;
  std::vector<Node*> pending_;
};

}  // namespace

TensorFlags inner_outputs(const std::vector<at::Tensor>& outputs,
                          const std::vector<at::Tensor>& roots) {
  if (outputs.size() < 2) return {};
  const auto edges = edges_of(outputs), starts = edges_of(roots);
  if (num_valid(edges) < 2 || num_valid(starts) == 0) return {};
  Walk walk(edges);
  for (const auto& start : starts) walk.from(start);
  return walk.result();
}

}  // namespace smp::server
