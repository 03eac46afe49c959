// module/node_pointer.h: what owns a node of an autograd graph, which depends on LibTorch's
// version.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <utility>

#include "base/torch_features.h"

namespace smp {

#if SMP_INTRUSIVE_NODES
template <class Node>
using NodePointer = c10::intrusive_ptr<Node>;

template <class Node, class... Arguments>
NodePointer<Node> make_node(Arguments&&... arguments) {
  return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
}

/// Returns one more owner of a node that has owners already.
template <class Node>
NodePointer<Node> owner_of(Node* node) {
  return c10::intrusive_ptr<Node>::unsafe_reclaim_from_nonowning(node);
}
#else
template <class Node>
using NodePointer = std::shared_ptr<Node>;

/// Makes a node with LibTorch's own deleter, so that a long graph is freed without deep recursion.
template <class Node, class... Arguments>
NodePointer<Node> make_node(Arguments&&... arguments) {
  return {new Node(std::forward<Arguments>(arguments)...), torch::autograd::deleteNode};
}

template <class Node>
NodePointer<Node> owner_of(Node* node) {
  return std::static_pointer_cast<Node>(
      static_cast<torch::autograd::Node*>(node)->shared_from_this());
}
#endif

}  // namespace smp
