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
class TurnTaker;

/// How one backward pass treats the graph; the meanings are those of torch::autograd::backward.
struct BackwardOptions {
  bool keep_graph = false;
  bool create_graph = false;
  bool accumulate = true;  ///< false: grad() with respect to captures, leaves are not touched
  /// Random numbers that hooks and functions of the user's draw; nothing: those of the caller.
  std::optional<std::uint64_t> random_key = {};
  TurnTaker* turns = nullptr;  ///< asked before a node computes; may be nullptr
  /// Of the execution whose graph is walked: the only one of its kind that gradients may reach.
  const BoundaryInput* boundary = nullptr;
};

class ReplyQueue;

/// Called once when an AsyncNode has its result, on the rank's thread. Ignored if the pass is gone.
class Completion {
 public:
  Completion() = default;
  void operator()(variable_list&& gradients, std::exception_ptr error) const;
  /// Whether there is one.
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
  /// On the fiber of the pass, before it uses the result: what could not be done when it came.
  virtual void unpack(variable_list& gradients);

  // Where all that reaches a node comes from another, its gradients need not come here: both are
  // started together, and they go from where they are computed to where they are needed
  // (docs/design.md, Promised outputs).

  /// Gradient `output` of a node is input `input` of `next`.
  struct Path {
    std::uint32_t output = 0;
    AsyncNode* next = nullptr;
    std::uint32_t input = 0;
  };
  /// What comes to a node of a chain, by input, and what goes from it, unseen by the pass.
  struct Paths {
    std::vector<std::uint32_t> in;
    std::vector<Path> out;
  };
  virtual bool can_pass_on_to(const AsyncNode& next, const BackwardOptions& options) const;
  /// All nodes of a chain join before the first is started. Must neither block nor suspend.
  virtual void join_chain(const BackwardOptions& options, Completion done);
  /// As start(), without the gradients that come along paths: where all do, there are none at all.
  virtual void start_in_chain(variable_list&& gradients, const BackwardOptions& options,
                              const Paths& paths);
  /// It was not started after all.
  virtual void leave_chain() noexcept;
  /// After unpack(): there was a gradient `output`, and it went along its path.
  virtual bool has_passed_on(std::uint32_t output) const;
  /// It was started in a chain, and no gradient came.
  virtual void not_reached() noexcept;

  /// Whether more gradient of what hangs on `input` arises within the node: the module has used
  /// that output for another one.
  virtual bool uses_itself(std::uint32_t input) const;
  /// Somebody looks at the gradient that comes to `input`. @throws UsageError  it is a part.
  virtual void require_whole_gradient(std::uint32_t input) const;
  /// What a fiber that waits for this node's result is said to wait for.
  virtual fiber::WaitReason wait_reason() const;
  variable_list apply(variable_list&& gradients) override;
};

/// Source of the tensor inputs of a module execution: they hang on it as non-leaves, so hooks,
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

  /// From now on only a pass with this as BackwardOptions::boundary may reach it.
  void belongs_to(const Execution& execution) noexcept { execution_ = execution; }
  /// What is captured has been fetched for the last time.
  void close() noexcept { closed_ = true; }

  /// Adds `gradients` to those captured. @throws UsageError  nobody would fetch them.
  void take(variable_list&& gradients, const BoundaryInput* of_pass);
  /// Of LibTorch's own engine.
  variable_list apply(variable_list&& gradients) override;
  std::string name() const override { return "SmpBoundaryInput"; }

 private:
  [[noreturn]] void refuse() const;

  std::optional<Execution> execution_;  // none: arguments of the step, any pass may come
  bool closed_ = false;
};
/// Hangs those of `tensors` with a flag on a new boundary; input numbers are indices.
NodePointer<BoundaryInput> make_boundary(std::vector<at::Tensor>& tensors,
                                         const TensorFlags& requires_grad);

/// `node` as the accumulator of a leaf, or nullptr. Leaves have no next edges, and nothing derives
/// from their class: a dynamic cast is too dear for every node.
inline torch::autograd::AccumulateGrad* as_leaf(Node& node) noexcept {
  using torch::autograd::AccumulateGrad;
  const bool is_leaf = node.num_outputs() == 0 && typeid(node) == typeid(AccumulateGrad);
  return is_leaf ? static_cast<AccumulateGrad*>(&node) : nullptr;
}

}  // namespace smp::server
