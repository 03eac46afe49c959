// server/executor.h: a backward executor over torch::autograd::Node that may suspend its fiber.
// LibTorch's own engine cannot be suspended, so a graph that contains remote calls is walked here
// (paper §4.1, App. B). Threads: the rank's thread, on any of its fibers.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fiber/scheduler.h"
#include "server/tensor_flags.h"

namespace smp::server {

using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

class TurnTaker;

/// How one backward pass treats the graph; the meanings are those of torch::autograd::backward.
struct BackwardOptions {
  bool keep_graph = false;
  bool create_graph = false;
  bool accumulate = true;      ///< false: grad() with respect to captures, leaves are not touched
  TurnTaker* turns = nullptr;  ///< asked before a node computes; may be nullptr
};

class ReplyQueue;

/// Called once when an AsyncNode has its result, on the rank's thread. Ignored if the pass is gone.
class Completion {
 public:
  Completion() = default;
  void operator()(variable_list&& gradients, std::exception_ptr error) const;

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
class AsyncNode : public Node {
 public:
  using Node::Node;
  /// Begins the work; must neither block nor suspend. `done` may be called at once or later.
  virtual void start(variable_list&& gradients, const BackwardOptions& options,
                     Completion done) = 0;
  /// What a fiber that waits for this node's result is said to wait for.
  virtual fiber::WaitReason wait_reason() const;
  variable_list apply(variable_list&& gradients) override;
};

/// Marks the outputs of a DistributedModel: our executor passes gradients through, LibTorch's own
/// engine stops with a message that names model.backward() (docs/design.md, Backward).
class GuardNode final : public Node {
 public:
  variable_list apply(variable_list&& gradients) override;
  std::string name() const override { return "SmpGuard"; }
};
/// `output` behind a GuardNode (same storage); unchanged if it does not require grad, or comes
/// straight from an AsyncNode, which stops that engine as well.
at::Tensor guard_output(const at::Tensor& output);

/// Source of the tensor inputs of a module execution: they hang on it as non-leaves, so hooks,
/// in-place operations and retain_grad work; it keeps the gradients that arrive.
class BoundaryInput final : public Node {
 public:
  variable_list captured;  ///< by input, summed over passes; undefined where no gradient arrived
  variable_list apply(variable_list&& gradients) override;
  std::string name() const override { return "SmpBoundaryInput"; }
};
/// Hangs those of `tensors` with a flag on a new boundary; input numbers are indices.
c10::intrusive_ptr<BoundaryInput> make_boundary(std::vector<at::Tensor>& tensors,
                                                const TensorFlags& requires_grad);

/// `node` as the accumulator of a leaf, or nullptr. Leaves have no next edges; the cast is too dear
/// for every node.
inline torch::autograd::AccumulateGrad* as_leaf(Node& node) noexcept {
  return node.num_outputs() == 0 ? dynamic_cast<torch::autograd::AccumulateGrad*>(&node) : nullptr;
}

/// Where gradients of leaves go, instead of straight into `.grad` (docs/design.md, Accumulation).
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// Takes the gradient that reached `leaf`; runs the leaf's hooks now or later (the executor does
  /// not). Grad mode is that of the pass.
  virtual void put(torch::autograd::AccumulateGrad& leaf, variable_list&& gradients) = 0;
  /// A capture of `leaf` was asked for (grad()); throws if the leaf is not this rank's.
  virtual void check_capture(torch::autograd::AccumulateGrad& leaf) = 0;
};

/// What one pass did; for tests and formulas.
struct BackwardStatistics {
  std::uint64_t nodes = 0;        ///< nodes evaluated
  std::uint64_t async_nodes = 0;  ///< of these, started
  std::uint64_t parks = 0;        ///< times the fiber was suspended
  int most_in_flight = 0;
};

/// Runs backward from `roots` with `gradients` (same length; undefined is allowed) on the calling
/// fiber, suspending it while only asynchronous work is left.
///
/// Order: ready nodes by descending sequence number, leaves first, as in LibTorch's engine; replies
/// of AsyncNodes are consumed in the order the nodes were started, once no local node is ready, so
/// that the order of every floating-point sum is independent of network timing. Error replies jump
/// the queue.
/// @param captures  edges whose incoming gradient is returned (same order); empty for backward().
///                  With options.accumulate everything is executed all the same.
/// @param sink      receives leaf gradients; nullptr: into `.grad` at once, as LibTorch does.
/// @throws whatever a node, a hook or an AsyncNode threw; late replies are then ignored.
variable_list run_backward(const edge_list& roots, variable_list gradients,
                           const BackwardOptions& options = {}, const edge_list& captures = {},
                           GradientSink* sink = nullptr, BackwardStatistics* statistics = nullptr);

/// Whether the calling fiber is inside Node::apply, of this executor or of LibTorch's engine. No
/// fiber may be suspended there: the frames below hold locks and guards of the thread.
bool inside_node() noexcept;

}  // namespace smp::server
