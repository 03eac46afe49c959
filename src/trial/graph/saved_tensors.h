// trial/graph/saved_tensors.h: what autograd keeps for backward (paper App. C.1).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <string>
#include <vector>

#include "module/node_pointer.h"

namespace smp::partitioning {

/// A node of an autograd graph and the tensors that it keeps.
struct KeepingNode {
  NodePointer<torch::autograd::Node> node;
  std::vector<at::Tensor> saved;  ///< all defined
  std::string fault = {};         ///< why `saved` may lack some; empty: it is complete
};

/// Returns the nodes of `roots` and of the graph below them, in the order in which they were made;
/// leaves come last. For types of nodes that do not tell what they keep (written by hand in C++)
/// `saved` is empty or holds only a part.
std::vector<KeepingNode> keeping_nodes(
    const std::vector<NodePointer<torch::autograd::Node>>& roots);

}  // namespace smp::partitioning
