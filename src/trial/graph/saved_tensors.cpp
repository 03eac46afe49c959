// trial/graph/saved_tensors.cpp: C++ has no default hooks for saved tensors, but every node can
// name its own to LibTorch's compiled autograd.
#include "trial/graph/saved_tensors.h"

#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <algorithm>
#include <unordered_set>

#include "module/node_pointer.h"

namespace smp::partitioning {
namespace {

using torch::autograd::Node;
using AnyNode = NodePointer<Node>;
namespace compiled = torch::dynamo::autograd;

std::vector<AnyNode> nodes_below(const std::vector<AnyNode>& roots) {
  std::vector<AnyNode> nodes;
  std::unordered_set<const Node*> seen;
  auto add = [&](const AnyNode& node) {
    if (node && seen.insert(node.get()).second) nodes.push_back(node);
  };
  for (const auto& root : roots) add(root);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const AnyNode node = nodes[i];
    for (const auto& edge : node->next_edges()) add(edge.function);
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const auto& a, const auto& b) { return a->sequence_nr() < b->sequence_nr(); });
  return nodes;
}

/// Returns the tensors that a node keeps for backward.
/// @param fault  set to the reason if they are not all
std::vector<at::Tensor> saved_by(const AnyNode& node, std::string& fault) {
  compiled::AutogradCompilerCall call(compiled::SizeInput::STATIC);
  compiled::NodeCall node_call(0, node);
  compiled::CompiledNodeArgs arguments(call, node_call);
  try {
    node->compiled_args(arguments);
  } catch (const std::exception& error) {
    // A node that does not tell, or a tensor changed in place since: the rest still counts.
    fault = error.what();
  }
  return std::move(call.tensor_args.inputs);
}

}  // namespace

std::vector<KeepingNode> keeping_nodes(const std::vector<AnyNode>& roots) {
  std::vector<KeepingNode> keeping;
  for (auto& node : nodes_below(roots)) {
    std::string fault;
    auto saved = saved_by(node, fault);
    std::erase_if(saved, [](const at::Tensor& tensor) { return !tensor.defined(); });
    keeping.push_back({std::move(node), std::move(saved), std::move(fault)});
  }
  return keeping;
}

}  // namespace smp::partitioning
