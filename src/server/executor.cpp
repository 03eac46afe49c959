// server/executor.cpp: one backward pass over torch::autograd::Node (paper §4.1, App. B). Order of
// nodes and hooks, captures and checks are those of LibTorch's engine. Threads: the rank's thread.
#include "server/executor.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/cpp_hook.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <optional>
#include <queue>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "base/check.h"
#include "base/heartbeat.h"
#include "base/random.h"
#include "server/backward_graph.h"
#include "server/gradient_chain.h"
#include "server/gradient_sum.h"
#include "server/reply_queue.h"
#include "server/turn_taker.h"

namespace smp::server {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::AnomalyMode;

// Balanced whenever the thread changes fibers, because none is suspended inside a node.
thread_local int nodes_on_stack = 0;

/// Answers that came while this fiber waited are passed on before it computes.
void take_turn(TurnTaker* turns) {
  if (turns == nullptr || inside_node()) return;
  if (schedule::is_passing_on(fiber::current_fiber()->priority)) turns->take_turn();
}

/// Forbids suspension while code of a node runs.
class InsideNode {
 public:
  InsideNode() noexcept { ++nodes_on_stack; }
  ~InsideNode() { --nodes_on_stack; }
  InsideNode(const InsideNode&) = delete;
  InsideNode& operator=(const InsideNode&) = delete;
};

/// A node all of whose gradients have come.
struct ReadyNode {
  std::uint64_t sequence_number;
  NodeIndex index;
  /// By sequence number only: equal ones (leaves) keep the order LibTorch's heap gives them.
  bool operator<(const ReadyNode& other) const noexcept {
    return sequence_number < other.sequence_number;
  }
};

void check_nan(const Node& node, const variable_list& outputs) {
  const at::AutoGradMode no_grad(false);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !at::isnan(outputs[i])._is_any_true().item<bool>()) continue;
    throw std::runtime_error(
        base::concat("Function '", node.name(), "' returned nan values in its ", i, "th output."));
  }
}

/// Which input's gradient `hook` is about, or nothing if that is not known. By name: LibTorch does
/// not export what typeid(Hook) would need.
std::optional<std::size_t> input_of(const torch::autograd::FunctionPreHook& hook) {
  using namespace torch::autograd;  // NOLINT(google-build-using-namespace)
  const std::string_view type = typeid(hook).name();
  if (type == "N5torch8autograd24CppFunctionTensorPreHookE") {
    return static_cast<const CppFunctionTensorPreHook&>(hook).value_idx_;
  }
  if (type == "N5torch8autograd30CppFunctionSingleTensorPreHookE") {
    return static_cast<const CppFunctionSingleTensorPreHook&>(hook).value_idx_;
  }
  return std::nullopt;
}

/// The arguments of an execution hang on one node here, and so do the outputs of a remote call; in
/// one process each has its own.
bool stands_for_many(Node& node) {
  return typeid(node) == typeid(BoundaryInput) || dynamic_cast<AsyncNode*>(&node) != nullptr;
}

/// Of all inputs that have one, since not every hook says which it is about.
void require_that_hooks_see_all(Node& node) {
  const auto* const async = dynamic_cast<AsyncNode*>(&node);
  if (async == nullptr) return;
  for (const auto& hook : node.tensor_pre_hooks()) {
    const auto input = input_of(*hook);
    const auto first = input ? static_cast<std::uint32_t>(*input) : 0;
    const auto end = input ? first + 1 : node.num_inputs();
    for (auto i = first; i < end; ++i) async->require_whole_gradient(i);
  }
  for (const auto& [input, hook] : node.retains_grad_hooks()) {
    async->require_whole_gradient(static_cast<std::uint32_t>(input));
  }
}

/// Hooks of what no gradient reaches are not called.
void call_hooks_of_reached(Node& node, variable_list& inputs) {
  require_that_hooks_see_all(node);
  for (const auto& hook : node.tensor_pre_hooks()) {
    const auto input = input_of(*hook);
    if (!input || inputs.at(*input).defined()) inputs = (*hook)(inputs);
  }
  for (const auto& [input, hook] : node.retains_grad_hooks()) {
    if (inputs.at(static_cast<std::size_t>(input)).defined()) inputs = (*hook)(inputs);
  }
}

void call_tensor_hooks(Node& node, variable_list& inputs) {
  if (node.tensor_pre_hooks().empty() && node.retains_grad_hooks().empty()) return;
  if (stands_for_many(node)) return call_hooks_of_reached(node, inputs);
  for (const auto& hook : node.tensor_pre_hooks()) inputs = (*hook)(inputs);
  for (const auto& [input, hook] : node.retains_grad_hooks()) inputs = (*hook)(inputs);
}

void validate(const Node& node, variable_list& outputs) {
  torch::autograd::validate_outputs(
      node.next_edges(), outputs, [&node](const std::string& problem) {
        return base::concat("Function ", node.name(), " returned an ", problem);
      });
}

class Pass {
 public:
  Pass(const edge_list& roots, const edge_list& captures, const BackwardOptions& options,
       GradientSink* sink, BackwardStatistics& statistics)
      : graph_(roots, captures, options.accumulate),
        options_(options),
        sink_(sink),
        statistics_(statistics),
        captured_(captures.size()) {}

  variable_list run(const edge_list& roots, variable_list&& gradients);

 private:
  void deliver_roots(const edge_list& roots, variable_list&& gradients);
  void work();
  void deliver(NodeIndex target, std::uint32_t input, at::Tensor&& gradient, bool reaches);
  void evaluate(NodeIndex index);
  void execute(NodeIndex index, variable_list&& inputs);
  void start(NodeIndex index, AsyncNode& node, variable_list&& inputs);
  void give_place(NodeIndex index);
  void count_started();
  void finish_started(Reply&& reply);
  void finish(NodeIndex index, variable_list&& outputs, const variable_list* inputs, bool reaches);
  void pass_on(NodeIndex index, variable_list&& outputs, bool reaches);
  void keep_captures(const GraphNode& entry, const variable_list& inputs);
  bool give_to_sink(Node& node, variable_list& inputs);
  void park();

  BackwardGraph graph_;
  const BackwardOptions& options_;
  GradientSink* const sink_;
  BackwardStatistics& statistics_;
  variable_list captured_;
  std::priority_queue<ReadyNode> ready_;
  ReplyQueue replies_;
  Node* current_ = nullptr;  // to blame for an exception
};

variable_list Pass::run(const edge_list& roots, variable_list&& gradients) {
  // Filling a generator takes as long as ten nodes.
  std::optional<base::RandomScope> random;
  if (options_.random_key && graph_.runs_user_code) random.emplace(*options_.random_key);
  try {
    deliver_roots(roots, std::move(gradients));
    work();
  } catch (...) {
    if (AnomalyMode::is_enabled() && current_ != nullptr) {
      current_->metadata()->print_stack(current_->name());
    }
    throw;
  }
  return std::move(captured_);
}

void Pass::deliver_roots(const edge_list& roots, variable_list&& gradients) {
  for (std::size_t i = 0; i < roots.size(); ++i) {
    if (graph_.roots[i] == kNoNode) continue;
    deliver(graph_.roots[i], roots[i].input_nr, std::move(gradients[i]), true);
  }
}

void Pass::work() {
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

void Pass::deliver(NodeIndex target, std::uint32_t input, at::Tensor&& gradient, bool reaches) {
  auto& entry = graph_.nodes[target];
  --entry.dependencies;
  entry.reached = entry.reached || reaches || gradient.defined();
  if (!entry.wanted()) return;
  if (entry.inputs.empty()) entry.inputs.resize(entry.node->num_inputs());
  add_gradient(entry.inputs[input], std::move(gradient));
  if (entry.dependencies == 0) ready_.push({entry.node->sequence_nr(), target});
}

/// A capture sees the gradient before the tensor's hooks if its node is executed too, else after
/// them: LibTorch's engine does so.
void Pass::evaluate(NodeIndex index) {
  auto& entry = graph_.nodes[index];
  Node& node = *entry.node;
  current_ = &node;
  auto inputs = std::exchange(entry.inputs, {});
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
  if (!entry.reached) return pass_on(index, variable_list(node.num_outputs()), false);
  call_tensor_hooks(node, inputs);
  for (const auto& hook : node.pre_hooks()) inputs = (*hook)(inputs);
  if (!options_.keep_graph) node.will_release_variables();
  execute(index, std::move(inputs));
}

void Pass::execute(NodeIndex index, variable_list&& inputs) {
  Node& node = *graph_.nodes[index].node;
  if (auto* async = dynamic_cast<AsyncNode*>(&node)) return start(index, *async, std::move(inputs));
  variable_list kept;
  const bool has_post_hooks = !node.post_hooks().empty();
  if (has_post_hooks) kept = inputs;
  variable_list outputs;
  if (typeid(node) == typeid(BoundaryInput)) {
    static_cast<BoundaryInput&>(node).take(std::move(inputs), options_.boundary);
  } else {
    take_turn(options_.turns);
    const InsideNode inside;
    outputs = node(std::move(inputs));
  }
  finish(index, std::move(outputs), has_post_hooks ? &kept : nullptr, true);
}

/// It was started ahead; now it would have been.
void Pass::give_place(NodeIndex index) {
  const auto& entry = graph_.nodes[index];
  replies_.enqueue(index, entry.reached);
  if (entry.reached) return count_started();
  static_cast<AsyncNode&>(*entry.node).not_reached();
  pass_on(index, variable_list(entry.node->num_outputs()), false);
}

void Pass::count_started() {
  ++statistics_.async_nodes;
  statistics_.most_in_flight = std::max(statistics_.most_in_flight, replies_.in_flight());
}

void Pass::start(NodeIndex index, AsyncNode& node, variable_list&& inputs) {
  if (!node.post_hooks().empty()) graph_.nodes[index].inputs = inputs;
  auto done = replies_.expect(index);
  count_started();
  const auto chain = chain_from(graph_, index, node, options_);
  const InsideNode inside;
  if (chain.empty()) return node.start(std::move(inputs), options_, std::move(done));
  start_chain(chain, std::move(inputs), options_, std::move(done), replies_);
}

void Pass::finish_started(Reply&& reply) {
  auto& entry = graph_.nodes[reply.node];
  current_ = entry.node;
  if (reply.error) std::rethrow_exception(reply.error);
  if (!reply.wanted) return;
  auto& node = static_cast<AsyncNode&>(*entry.node);
  node.unpack(reply.gradients);
  for (std::uint32_t i = 0; i < node.num_outputs(); ++i) {
    if (node.has_passed_on(i)) graph_.nodes[graph_.targets[entry.first_target + i]].reached = true;
  }
  const auto inputs = std::exchange(entry.inputs, {});
  // A module that does not use an argument sends no gradient for it.
  finish(reply.node, std::move(reply.gradients), inputs.empty() ? nullptr : &inputs, false);
}

void Pass::finish(NodeIndex index, variable_list&& outputs, const variable_list* inputs,
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

/// @param reaches  whether one process goes on where there is no gradient, as LibTorch's nodes do
void Pass::pass_on(NodeIndex index, variable_list&& outputs, bool reaches) {
  const Node& node = *graph_.nodes[index].node;
  const auto* const targets = graph_.targets.data() + graph_.nodes[index].first_target;
  for (std::uint32_t i = 0; i < outputs.size(); ++i) {
    if (targets[i] == kNoNode) continue;
    deliver(targets[i], node.next_edge(i).input_nr, std::move(outputs[i]), reaches);
  }
}

void Pass::keep_captures(const GraphNode& entry, const variable_list& inputs) {
  const auto* const async =
      entry.first_capture < 0 ? nullptr : dynamic_cast<const AsyncNode*>(entry.node);
  for (int i = entry.first_capture; i >= 0; i = graph_.captures[i].next) {
    const auto& capture = graph_.captures[i];
    if (async != nullptr) async->require_whole_gradient(capture.input);
    captured_[capture.result] = inputs[capture.input];
  }
}

bool Pass::give_to_sink(Node& node, variable_list& inputs) {
  auto* const leaf = sink_ == nullptr ? nullptr : as_leaf(node);
  if (leaf == nullptr) return false;
  sink_->put(*leaf, std::move(inputs));
  return true;
}

void Pass::park() {
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

void check_captures(const edge_list& captures, GradientSink& sink) {
  for (const auto& edge : captures) {
    auto* const leaf = edge.is_valid() ? as_leaf(*edge.function) : nullptr;
    if (leaf != nullptr) sink.check_capture(*leaf);
  }
}

}  // namespace

variable_list run_backward(const edge_list& roots, variable_list gradients,
                           const BackwardOptions& options, const edge_list& captures,
                           GradientSink* sink, BackwardStatistics* statistics) {
  torch::autograd::validate_outputs(roots, gradients, [](const std::string& text) { return text; });
  if (sink != nullptr) check_captures(captures, *sink);
  BackwardStatistics unused;
  auto& counts = statistics == nullptr ? unused : *statistics;
  counts = {};
  const at::AutoGradMode mode(options.create_graph);
  return Pass(roots, captures, options, sink, counts).run(roots, std::move(gradients));
}

bool inside_own_node() noexcept { return nodes_on_stack > 0; }

bool inside_node() noexcept {
  return inside_own_node() || torch::autograd::get_current_graph_task_id() != -1;
}

}  // namespace smp::server
