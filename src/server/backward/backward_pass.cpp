// server/backward/backward_pass.cpp: order of nodes and hooks, captures and checks are those of
// LibTorch's engine, but for casts of weights (age_of). Threads: the rank's thread.
#include "server/backward/backward_pass.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <typeinfo>
#include <utility>

#include "alive/heartbeat.h"
#include "base/check.h"
#include "base/random.h"
#include "server/backward/gradient_chain.h"
#include "server/backward/missing_derivative.h"
#include "server/backward/wide_nodes.h"
#include "server/backward/written_tensor.h"
#include "server/graph/gradient_sum.h"
#include "server/graph/node_hooks.h"
#include "server/graph/product_nodes.h"
#include "server/running/execution_scope.h"
#include "server/running/inside_node.h"
#include "server/running/turn_taker.h"

namespace smp::server {
namespace {

using torch::autograd::AnomalyMode;

/// Lets fibers that hold answers for other ranks go first, if this fiber has waited for an answer
/// itself and is about to compute. May suspend.
void take_turn(TurnTaker* turns) {
  if (turns == nullptr || inside_node()) return;
  if (schedule::is_passing_on(fiber::current_fiber()->priority)) turns->take_turn();
}

void check_nan(const Node& node, const variable_list& outputs) {
  const at::AutoGradMode no_grad(false);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !at::isnan(outputs[i])._is_any_true().item<bool>()) continue;
    throw std::runtime_error(
        base::concat("Function '", node.name(), "' returned nan values in its ", i, "th output."));
  }
}

void validate(const Node& node, variable_list& outputs) {
  torch::autograd::validate_outputs(
      node.next_edges(), outputs, [&node](const std::string& problem) {
        return base::concat("Function ", node.name(), " returned an ", problem);
      });
}

/// True if the node can be applied twice, each time for some of its edges. A post hook would want
/// to see all of its gradients at once.
bool can_compute_twice(const GraphNode& entry) {
  return entry.also_leaves && entry.node->post_hooks().empty() &&
         computes_gradients_apart(*entry.node);
}

/// The age by which ready nodes take turns, the youngest first. The cast of a weight is as young as
/// AccumulateGrad: autocast keeps it for all microbatches, so by its own age it would be the last
/// of a later one's backward, and the gradients of all casts would wait for it.
std::uint64_t age_of(const Node& node) {
  using torch::autograd::AccumulateGrad;
  const bool casts = typeid(node) == typeid(torch::autograd::generated::ToCopyBackward0);
  if (!casts || dynamic_cast<const AccumulateGrad*>(node.next_edge(0).function.get()) == nullptr) {
    return node.sequence_nr();
  }
  return std::numeric_limits<std::uint64_t>::max();
}

/// Adds to the exception that is being handled, which came while `node` was computed.
void explain(const Node& node) {
  explain_written_tensor(node);
  explain_missing_derivative();
}

}  // namespace

variable_list BackwardPass::run(const edge_list& roots, variable_list&& gradients) {
  auto* const scope = graph_.runs_user_code ? nullptr : ExecutionScope::current();
  const OwnCodeOnly own(scope == nullptr ? nullptr : &scope->settings());
  // Filling a generator takes as long as ten nodes.
  std::optional<base::RandomScope> random;
  if (options_.random_key && graph_.runs_user_code) random.emplace(*options_.random_key);
  try {
    deliver_roots(roots, std::move(gradients));
    work();
  } catch (...) {
    if (current_ != nullptr) explain(*current_);
    if (AnomalyMode::is_enabled() && current_ != nullptr) {
      current_->metadata()->print_stack(current_->name());
    }
    throw;
  }
  return std::move(captured_);
}

void BackwardPass::deliver_roots(const edge_list& roots, variable_list&& gradients) {
  for (std::size_t i = 0; i < roots.size(); ++i) {
    if (graph_.roots[i] == kNoNode) continue;
    deliver(graph_.roots[i], roots[i].input_nr, std::move(gradients[i]), true);
  }
}

void BackwardPass::work() {
  while (true) {
    if (!ready_.empty()) {
      const auto index = ready_.top().index;
      ready_.pop();
      evaluate(index);
    } else if (auto reply = replies_.take()) {
      finish_started(std::move(*reply));
    } else if (replies_.in_flight() > 0) {
      park();
    } else {
      return;
    }
  }
}

void BackwardPass::deliver(NodeIndex target, std::uint32_t input, at::Tensor&& gradient,
                           bool reaches) {
  auto& entry = graph_.nodes[target];
  --entry.dependencies;
  entry.reached = entry.reached || reaches || gradient.defined();
  if (!entry.wanted()) return;
  if (entry.inputs.empty()) entry.inputs.resize(entry.node->num_inputs());
  add_gradient(entry.inputs[input], std::move(gradient));
  if (entry.dependencies > 0) return;
  auto& queue = part_ == Part::kFirst && entry.only_leaves ? put_off_ : ready_;
  queue.push({replies_taken_, age_of(*entry.node), target});
}

/// Runs hooks, captures and the node itself. As in LibTorch's engine, a capture gets the gradient
/// before the tensor's hooks if its node is executed too, else after them.
void BackwardPass::evaluate(NodeIndex index) {
  auto& entry = graph_.nodes[index];
  Node& node = *entry.node;
  current_ = &node;
  auto inputs = std::exchange(entry.inputs, {});
  if (entry.beyond) {
    if (entry.reached) options_.border->keep(node, std::move(inputs));
    return;
  }
  if (!entry.execute) {
    call_tensor_hooks(node, inputs);
    keep_captures(entry, inputs);
    return;
  }
  ++statistics_.nodes;
  base::beat();
  keep_captures(entry, inputs);
  if (give_to_sink(node, inputs)) return;
  if (entry.started_ahead) return give_place(index);
  if (!entry.reached && entry.kind != NodeKind::kSuspending) {
    return pass_on(index, variable_list(node.num_outputs()), false);
  }
  call_tensor_hooks(node, inputs);
  for (const auto& hook : node.pre_hooks()) inputs = (*hook)(inputs);
  widen_sums(node, inputs);
  if (part_ == Part::kFirst && can_compute_twice(entry)) {
    return compute_for_others(index, std::move(inputs));
  }
  if (!options_.keep_graph) node.will_release_variables();
  execute(index, std::move(inputs));
}

void BackwardPass::execute(NodeIndex index, variable_list&& inputs) {
  const auto kind = graph_.nodes[index].kind;
  Node& node = *graph_.nodes[index].node;
  if (kind == NodeKind::kSuspending) {
    return suspend_in(index, static_cast<module::SuspendingNode&>(node), std::move(inputs));
  }
  if (kind == NodeKind::kAsync) {
    return start(index, static_cast<AsyncNode&>(node), std::move(inputs));
  }
  variable_list kept;
  const bool has_post_hooks = !node.post_hooks().empty();
  if (has_post_hooks) kept = inputs;
  variable_list outputs;
  if (kind == NodeKind::kBoundary) {
    static_cast<BoundaryInput&>(node).take(std::move(inputs), options_.boundary);
  } else {
    outputs = compute(graph_.nodes[index], Targets::kAll, std::move(inputs));
  }
  finish(index, std::move(outputs), has_post_hooks ? &kept : nullptr, true);
}

/// Applies the node, and leaves out the gradients of next edges that are not among `targets`.
variable_list BackwardPass::compute(const GraphNode& entry, Targets targets,
                                    variable_list&& inputs) {
  take_turn(options_.turns);  // before edges are taken
  MaskedEdges mask(*entry.node);
  for (std::uint32_t i = 0; targets != Targets::kAll && i < entry.node->num_outputs(); ++i) {
    const auto target = graph_.targets[entry.first_target + i];
    if (target != kNoNode && !is_among(targets, target)) mask.take(i);
  }
  const InsideNode inside;
  if (auto wide = computed_wide(*entry.node, inputs)) return *std::move(wide);
  return (*entry.node)(std::move(inputs));
}

void BackwardPass::compute_for_others(NodeIndex index, variable_list&& inputs) {
  const auto& entry = graph_.nodes[index];
  put_off(index, {.inputs = inputs});
  auto outputs = compute(entry, Targets::kAllOthers, std::move(inputs));
  validate(*entry.node, outputs);
  pass_on_to(Targets::kAllOthers, index, outputs, true);
}

void BackwardPass::finish_for_leaves(NodeIndex index, ForLeaves&& kept) {
  const auto& entry = graph_.nodes[index];
  current_ = entry.node;
  if (!kept.inputs.empty()) {
    base::beat();
    entry.node->will_release_variables();
    kept.outputs = compute(entry, Targets::kLeavesOnly, std::move(kept.inputs));
    kept.reaches = true;
    validate(*entry.node, kept.outputs);
    entry.node->release_variables();
  }
  pass_on_to(Targets::kLeavesOnly, index, kept.outputs, kept.reaches);
}

/// Gives the reply of a node that was started ahead its place in the queue: now the node would have
/// been started by itself.
void BackwardPass::give_place(NodeIndex index) {
  const auto& entry = graph_.nodes[index];
  replies_.enqueue(index, entry.reached);
  if (entry.reached) return statistics_.count_started(replies_.in_flight());
  static_cast<AsyncNode&>(*entry.node).not_reached();
  pass_on(index, variable_list(entry.node->num_outputs()), false);
}

void BackwardPass::start(NodeIndex index, AsyncNode& node, variable_list&& inputs) {
  if (!node.post_hooks().empty()) graph_.nodes[index].inputs = inputs;
  auto done = replies_.expect(index);
  statistics_.count_started(replies_.in_flight());
  const auto chain = chain_from(graph_, index, node, options_);
  tie(index, node);
  for (std::size_t i = 1; i < chain.size(); ++i) tie(chain[i].index, *chain[i].node);
  const InsideNode inside;
  if (chain.empty()) return node.start(std::move(inputs), options_, std::move(done));
  start_chain(chain, std::move(inputs), options_, std::move(done), replies_);
}

/// Tells a node that is about to be started from whom it takes, and to whom it leaves.
void BackwardPass::tie(NodeIndex index, AsyncNode& node) {
  const auto older = graph_.nodes[index].older;
  if (older != kNoNode) node.leave_rest_to(static_cast<AsyncNode&>(*graph_.nodes[older].node));
  for (const auto& [taker, younger] : left_) {
    if (taker == index) node.take_rest_of(static_cast<AsyncNode&>(*graph_.nodes[younger].node));
  }
}

/// What a node has left reaches the one that takes it, as a gradient would: in this pass, or in the
/// one that goes on behind the border.
void BackwardPass::note_rest(NodeIndex index, const AsyncNode& node) {
  const auto older = graph_.nodes[index].older;
  if (older == kNoNode || !node.has_left_rest()) return;
  auto& entry = graph_.nodes[older];
  entry.reached = true;
  if (entry.beyond) {
    static_cast<AsyncNode&>(*entry.node).take_rest_of(node);
  } else {
    left_.emplace_back(older, index);
  }
}

/// Runs a node that suspends the fiber until the other ranks that take part have come. Its
/// gradients come from all of them, so it runs even if no gradient came here.
void BackwardPass::suspend_in(NodeIndex index, module::SuspendingNode& node,
                              variable_list&& inputs) {
  SMP_REQUIRE(!inside_node(), "a backward pass that was begun inside the backward of another node ",
              "cannot wait for other ranks in ", node.name(),
              ": call distributed modules in a tensor hook or outside of backward instead");
  take_turn(options_.turns);
  variable_list kept;
  const bool has_post_hooks = !node.post_hooks().empty();
  if (has_post_hooks) kept = inputs;
  auto outputs = node.run(std::move(inputs));
  finish(index, std::move(outputs), has_post_hooks ? &kept : nullptr, true);
}

void BackwardPass::finish_started(Reply&& reply) {
  auto& entry = graph_.nodes[reply.node];
  current_ = entry.node;
  ++replies_taken_;
  if (reply.error) std::rethrow_exception(reply.error);
  if (!reply.wanted) return;
  auto& node = static_cast<AsyncNode&>(*entry.node);
  node.unpack(reply.gradients);
  for (std::uint32_t i = 0; i < node.num_outputs(); ++i) {
    if (node.has_passed_on(i)) graph_.nodes[graph_.targets[entry.first_target + i]].reached = true;
  }
  const auto inputs = std::exchange(entry.inputs, {});
  note_rest(reply.node, node);
  // A module that does not use an argument sends no gradient for it.
  finish(reply.node, std::move(reply.gradients), inputs.empty() ? nullptr : &inputs, false);
}

void BackwardPass::finish(NodeIndex index, variable_list&& outputs, const variable_list* inputs,
                          bool reaches) {
  Node& node = *graph_.nodes[index].node;
  validate(node, outputs);
  if (inputs != nullptr) {
    for (const auto& hook : node.post_hooks()) outputs = (*hook)(outputs, *inputs);
  }
  if (!options_.keep_graph) node.release_variables();
  if (AnomalyMode::is_enabled() && AnomalyMode::should_check_nan()) check_nan(node, outputs);
  pass_on(index, std::move(outputs), reaches);
}

/// Passes the gradients that a node gave on to its next nodes; in the first part, puts off those
/// for leaves.
/// @param reaches  true if a next node counts as reached even without a gradient, as in LibTorch
void BackwardPass::pass_on(NodeIndex index, variable_list&& outputs, bool reaches) {
  if (part_ != Part::kFirst || !graph_.nodes[index].also_leaves) {
    return pass_on_to(Targets::kAll, index, outputs, reaches);
  }
  pass_on_to(Targets::kAllOthers, index, outputs, reaches);
  put_off(index, {.outputs = std::move(outputs), .reaches = reaches});
}

/// Moves the gradients for `targets` out of `outputs` and delivers them.
void BackwardPass::pass_on_to(Targets targets, NodeIndex index, variable_list& outputs,
                              bool reaches) {
  const auto& entry = graph_.nodes[index];
  const Node& node = *entry.node;
  const auto first = entry.first_target;
  for (std::uint32_t i = 0; i < outputs.size(); ++i) {
    const auto target = graph_.targets[first + i];
    if (target == kNoNode || !is_among(targets, target)) continue;
    deliver(target, node.next_edge(i).input_nr, std::move(outputs[i]), reaches);
  }
}

/// Keeps a node for the second part, which takes it up where an undivided pass would have come to
/// it. A node that a reply made ready comes before all nodes that follow from it, because these are
/// older.
void BackwardPass::put_off(NodeIndex index, ForLeaves&& kept) {
  for_leaves_.emplace(index, std::move(kept));
  put_off_.push({replies_taken_, age_of(*graph_.nodes[index].node), index});
}

bool BackwardPass::is_among(Targets targets, NodeIndex target) const {
  if (targets == Targets::kAll) return true;
  return graph_.nodes[target].only_leaves == (targets == Targets::kLeavesOnly);
}

void BackwardPass::put_off_what_only_leaves_need() {
  SMP_ASSERT(captured_.empty() && !options_.keep_graph && !options_.create_graph,
             "a pass that cannot be in two parts");
  graph_.find_what_only_leaves_need();
  part_ = Part::kFirst;
}

void BackwardPass::run_put_off() try {
  std::optional<base::RandomScope> random;
  if (options_.random_key && graph_.runs_user_code) {
    random.emplace(base::mix_key(*options_.random_key, 1));
  }
  part_ = Part::kSecond;
  ready_.swap(put_off_);
  while (!ready_.empty()) {
    const auto next = ready_.top();
    ready_.pop();
    replies_taken_ = next.replies;
    const auto kept = for_leaves_.find(next.index);
    if (kept == for_leaves_.end()) {
      evaluate(next.index);
    } else {
      finish_for_leaves(next.index, std::exchange(kept->second, {}));
    }
  }
} catch (...) {
  if (current_ != nullptr) explain(*current_);
  throw;
}

void BackwardPass::keep_captures(const GraphNode& entry, const variable_list& inputs) {
  const auto* const async =
      entry.kind == NodeKind::kAsync ? static_cast<const AsyncNode*>(entry.node) : nullptr;
  for (int i = entry.first_capture; i >= 0; i = graph_.captures[i].next) {
    const auto& capture = graph_.captures[i];
    if (async != nullptr) async->require_whole_gradient(capture.input);
    captured_[capture.result] = inputs[capture.input];
  }
}

bool BackwardPass::give_to_sink(Node& node, variable_list& inputs) {
  auto* const leaf = sink_ == nullptr ? nullptr : as_leaf(node);
  if (leaf == nullptr) return false;
  sink_->put(*leaf, std::move(inputs));
  return true;
}

void BackwardPass::park() {
  Node& node = *graph_.nodes[replies_.next()].node;
  const auto reason = static_cast<AsyncNode&>(node).wait_reason();
  SMP_REQUIRE(!inside_node(),
              "a backward pass that was begun inside the backward of another node "
              "cannot wait for ",
              reason.what, " of ", node.name(),
              ": call distributed modules in a tensor hook or outside of backward instead");
  ++statistics_.parks;
  replies_.wait(reason);
}

}  // namespace smp::server
