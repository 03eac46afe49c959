// server/graph/special_nodes.h: the nodes of ours in graphs of LibTorch, and what a backward pass
// asks of them (paper §4.1, App. B). Threads: the rank's thread, on any of its fibers.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "fiber/scheduler.h"
#include "module/node_pointer.h"
#include "module/waiting_node.h"
#include "server/protocol/ids.h"
#include "server/protocol/tensor_flags.h"

namespace smp::server {

using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

class BoundaryInput;
class GraphBorder;
class TurnTaker;

/// The options of one backward pass; their meanings are those of torch::autograd::backward.
struct BackwardOptions {
  bool keep_graph = false;
  bool create_graph = false;
  bool accumulate = true;  ///< false: grad() with respect to captures, leaves are not touched
  /// The key of the random numbers that hooks and functions of the user's draw; nullopt: they draw
  /// from the caller's stream.
  std::optional<std::uint64_t> random_key = {};
  TurnTaker* turns = nullptr;  ///< asked before a node computes; may be nullptr
  /// The boundary of the execution whose graph is walked: the only BoundaryInput of an execution
  /// that gradients may reach.
  const BoundaryInput* boundary = nullptr;
  GraphBorder* border = nullptr;  ///< the pass ends there, and leaves its gradients; may be nullptr
};

class ReplyQueue;

/// The callback of an AsyncNode: called once when its result is there, on the rank's thread.
/// Ignored if the pass is gone.
class Completion {
 public:
  Completion() = default;
  void operator()(variable_list&& gradients, std::exception_ptr error) const;
  /// True unless it is default-constructed or was moved from.
  explicit operator bool() const noexcept { return replies_ != nullptr; }

 private:
  friend class ReplyQueue;
  struct Replies;  // of one pass, shared with it
  Completion(std::shared_ptr<Replies> replies, std::size_t number)
      : replies_(std::move(replies)), number_(number) {}
  std::shared_ptr<Replies> replies_;
  std::size_t number_ = 0;
};

/// A node whose backward takes time elsewhere: it is started, never applied. Applying it
/// (LibTorch's own engine would) fails with a message that names model.backward().
class AsyncNode : public module::WaitingNode {
 public:
  using module::WaitingNode::WaitingNode;
  /// Begins the work; must neither block nor suspend. `done` may be called at once or later.
  virtual void start(variable_list&& gradients, const BackwardOptions& options,
                     Completion done) = 0;
  /// Called on the fiber of the pass before it uses the result; does what could not be done in the
  /// poll that received it.
  virtual void unpack(variable_list& gradients);

  // Where all that reaches a node comes from another, its gradients need not come here: both are
  // started together, and they go from where they are computed to where they are needed
  // (docs/design.md, Promised outputs).

  /// A way from one node of a chain to another: gradient `output` of the node is input `input` of
  /// `next`.
  struct Path {
    std::uint32_t output = 0;
    AsyncNode* next = nullptr;
    std::uint32_t input = 0;
  };
  /// The gradients that come to a node of a chain (`in`: its inputs), and those that go on from it
  /// (`out`), without being seen by the pass.
  struct Paths {
    std::vector<std::uint32_t> in;
    std::vector<Path> out;
  };
  virtual bool can_pass_on_to(const AsyncNode& next, const BackwardOptions& options) const;
  /// Prepares the node for being started in a chain. All nodes of a chain join before the first is
  /// started. Must neither block nor suspend.
  virtual void join_chain(const BackwardOptions& options, Completion done);
  /// Begins the work like start(). `gradients` lacks those that come along paths, and is empty if
  /// all do.
  virtual void start_in_chain(variable_list&& gradients, const BackwardOptions& options,
                              const Paths& paths);
  /// Undoes join_chain(), because the node was not started after all.
  virtual void leave_chain() noexcept;
  /// True if there was a gradient `output` and it went along its path. Valid after unpack().
  virtual bool has_passed_on(std::uint32_t output) const;
  /// Called if the node was started in a chain and no gradient has reached it.
  virtual void not_reached() noexcept;

  // The graph of a node's gradients leads through the graph of the node itself. A pass over both
  // goes through the latter once: the younger node ends at it, and the older one, which is started
  // last, begins with what came there.

  /// True if the last edge leads to the node whose gradients this one is the graph of. No gradient
  /// goes along it.
  virtual bool has_older() const noexcept { return false; }
  /// Called before the node is started in a pass that comes to the older one later.
  virtual void leave_rest_to(const AsyncNode& older);
  /// True if it has left something there. Valid after unpack().
  virtual bool has_left_rest() const noexcept { return false; }
  /// Called before the node is started, once for each: `younger` has left it something.
  virtual void take_rest_of(const AsyncNode& younger);

  /// True if a part of the gradient at `input` arises within the node, because the module has used
  /// that output for another output.
  virtual bool uses_itself(std::uint32_t input) const;
  /// Called if somebody looks at the gradient that comes to `input`. @throws UsageError  it is only
  /// a part of the gradient (uses_itself()).
  virtual void require_whole_gradient(std::uint32_t input) const;
  /// The reason that reports give for a fiber that waits for this node's result.
  virtual fiber::WaitReason wait_reason() const;
  variable_list apply(variable_list&& gradients) override;
};

/// The source of the tensor inputs of a module execution: they hang on it as non-leaves, so hooks,
/// in-place operations and retain_grad work; it keeps the gradients that arrive. A gradient that
/// nobody would fetch is refused: one that another pass brings than that over the execution (state
/// that a module keeps between calls, LibTorch's own engine), or one that comes too late.
class BoundaryInput final : public Node {
 public:
  /// The execution of a module whose arguments these are.
  struct Execution {
    ModuleId module = kBody;
    std::int32_t microbatch = -1;
    std::int64_t step = -1;
  };
  variable_list captured;  ///< by input, summed over passes; undefined where no gradient arrived

  /// Sets the execution. From now on only a pass with this as BackwardOptions::boundary may reach
  /// it.
  void belongs_to(const Execution& execution) noexcept { execution_ = execution; }
  /// Refuses gradients from now on: those captured have been fetched for the last time.
  void close() noexcept { closed_ = true; }
  /// What hangs on this boundary is the graph of a backward over the execution of `older`, and may
  /// lead there too: a pass over it brings gradients of both (create_graph).
  void extends(NodePointer<BoundaryInput> older) noexcept { older_ = std::move(older); }
  /// One edge for each input of this boundary, then those of the ones that it extends.
  static edge_list edges_into(NodePointer<BoundaryInput> boundary);
  /// Takes what has been captured, in the order of edges_into().
  variable_list fetch();

  /// Adds `gradients` to those captured. @throws UsageError  nobody would fetch them: `of_pass`,
  /// the boundary of the running pass, is another one, or close() was called.
  void take(variable_list&& gradients, const BoundaryInput* of_pass);
  /// Called by LibTorch's own engine only.
  variable_list apply(variable_list&& gradients) override;
  std::string name() const override { return "SmpBoundaryInput"; }

 private:
  [[noreturn]] void refuse() const;
  bool leads_to(const BoundaryInput& other) const noexcept;

  std::optional<Execution> execution_;  // none: arguments of the step, any pass may come
  NodePointer<BoundaryInput> older_;    // nullptr: of a forward
  bool closed_ = false;
};
/// Hangs each of `tensors` whose flag in `requires_grad` is set on a new boundary; input numbers
/// are indices in `tensors`.
NodePointer<BoundaryInput> make_boundary(std::vector<at::Tensor>& tensors,
                                         const TensorFlags& requires_grad);

/// Returns `node` as the AccumulateGrad of a leaf, or nullptr if it is none. Leaves have no next
/// edges, and nothing derives from their class: a dynamic cast is too dear for every node.
inline torch::autograd::AccumulateGrad* as_leaf(Node& node) noexcept {
  using torch::autograd::AccumulateGrad;
  const bool is_leaf = node.num_outputs() == 0 && typeid(node) == typeid(AccumulateGrad);
  return is_leaf ? static_cast<AccumulateGrad*>(&node) : nullptr;
}

}  // namespace smp::server
