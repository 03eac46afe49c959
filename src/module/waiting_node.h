// module/waiting_node.h: autograd nodes whose backward waits for other ranks, which LibTorch's own
// engine cannot run (docs/design.md, What may suspend).
#pragma once

#include <torch/csrc/autograd/function.h>

namespace smp::module {

/// A node that is never applied by an engine; our executor knows what to do instead. Threads: the
/// rank's.
class WaitingNode : public torch::autograd::Node {
 public:
  using torch::autograd::Node::Node;
};

/// A node whose work may suspend the fiber that runs it. The executor calls run() where its fiber
/// may be suspended, in grad mode off unless the pass has create_graph, and nothing else of the
/// same pass runs meanwhile; other fibers do. It runs whenever it is in the graph of the pass, also
/// if no gradient has come to it, because other ranks may wait for it.
class SuspendingNode : public WaitingNode {
 public:
  using WaitingNode::WaitingNode;
  /// Computes the gradients of the inputs; in grad mode with their history, which leads to those of
  /// the outputs. May suspend.
  /// @param gradients  those of the outputs; undefined where there is none
  virtual torch::autograd::variable_list run(torch::autograd::variable_list&& gradients) = 0;
  /// Always throws UsageError, which says what to call instead.
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) final;
};

}  // namespace smp::module
