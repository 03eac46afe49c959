// server/calls/remote_call.cpp: gradients become a request, and its answer becomes gradients.
#include "server/calls/remote_call.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "server/graph/gradient_sum.h"
#include "server/protocol/flag_note.h"
#include "server/values/link_follower.h"
#include "server/values/tensor_forms.h"

namespace smp::server {
namespace {

/// The histories of `gradients`; invalid where there is none, or where it is that of one before.
edge_list histories_of(const variable_list& gradients) {
  edge_list histories;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const auto& gradient = gradients[i];
    const bool has = gradient.defined() && gradient.requires_grad() && !stands_before(gradients, i);
    histories.push_back(has ? torch::autograd::impl::gradient_edge(gradient)
                            : torch::autograd::Edge());
  }
  return histories;
}

TensorFlags valid(const edge_list& edges) {
  TensorFlags flags;
  for (const auto& edge : edges) flags.push_back(edge.is_valid());
  return flags;
}

}  // namespace

#if SMP_INTRUSIVE_NODES
void RemoteCall::release_resources() {
  call_->drop();
  AsyncNode::release_resources();
}
#endif

fiber::WaitReason RemoteCall::wait_reason() const {
  const auto& facts = call_->facts();
  return {"backward", facts.path, facts.owner_name.value(), facts.microbatch};
}

void RemoteCall::start(variable_list&& gradients, const BackwardOptions& options, Completion done) {
  if (!call_->begun_early()) {
    for (auto& own : passing_) {
      own.gradient = std::exchange(gradients.at(own.output), at::Tensor());
    }
  }
  call_->join(options, std::move(done));
  histories_ = options.create_graph ? histories_of(gradients) : edge_list();
  if (call_->backward() != BackwardState::kJoined) return;  // begun early, or it has ended
  try {
    start_in_chain(std::move(gradients), options, {});
  } catch (...) {
    call_->leave();
    throw;
  }
}

bool RemoteCall::may_be_in_chain() const noexcept {
  const bool has_record = call_->facts().record || is_open(call_->forward());
  return has_record && call_->backward() == BackwardState::kNone && passing_.empty();
}

bool RemoteCall::can_pass_on_to(const AsyncNode& next, const BackwardOptions& options) const {
  const auto* const other = dynamic_cast<const RemoteCall*>(&next);
  const auto line = call_->line();
  if (other == nullptr || line == nullptr || other->call_->line() != line) return false;
  if (call_->begun_early() && other->call_->begun_early()) return true;
  if (!line->may_pass_on() || options.keep_graph || options.create_graph) return false;
  // Whether `other` ends as promised, its caller learns from what got its result by promise only.
  if (!is_open(call_->forward()) && is_open(other->call_->forward())) return false;
  return may_be_in_chain() && other->may_be_in_chain() && hooked_ == nullptr &&
         other->call_->facts().step == call_->facts().step;
}

void RemoteCall::join_chain(const BackwardOptions& options, Completion done) {
  call_->join(options, std::move(done));
}

void RemoteCall::leave_rest_to(const AsyncNode& older) {
  leaves_rest_to_ = static_cast<const RemoteCall&>(older).call_->facts().record;
}

void RemoteCall::take_rest_of(const AsyncNode& younger) {
  takes_rest_of_.push_back(static_cast<const RemoteCall&>(younger).call_->facts().record);
}

void RemoteCall::start_in_chain(variable_list&& gradients, const BackwardOptions& options,
                                const Paths& paths) {
  if (call_->backward() != BackwardState::kJoined) return;  // the step has failed, or it was sent
  call_->ask_backward(request_for(std::move(gradients), options, paths));
}

void RemoteCall::start_early(const BackwardOptions& options, const Paths& paths,
                             const EarlyStart& start) {
  if (call_->backward() != BackwardState::kJoined) return;  // the step has failed
  auto request = request_for({}, options, paths);
  request.early = start;
  // Once its answer is used the record is known here; there, only what ended as promised has a
  // name.
  if (is_open(call_->forward())) request.early->forward = call_->facts().request;
  if (start.output >= 0) request.gradients.resize(call_->facts().num_results);
  call_->ask_backward(std::move(request));
}

BackwardRequest RemoteCall::request_for(variable_list&& gradients, const BackwardOptions& options,
                                        const Paths& paths) {
  const auto& facts = call_->facts();
  BackwardRequest request;
  request.gradients = std::move(gradients);
  request.only_inputs = !options.accumulate;
  request.create_graph = options.create_graph;
  if (options.create_graph) request.history = note_of(valid(histories_));
  request.leaves_rest_to = std::exchange(leaves_rest_to_, {});
  request.takes_rest_of = std::exchange(takes_rest_of_, {});
  request.forms = take_forms(request.gradients, "output gradient", facts.path, /*layout=*/false);
  if (!paths.in.empty()) {
    request.gradients.resize(std::max<std::size_t>(num_inputs(), facts.num_results));
  }
  for (const auto input : paths.in) request.promised.push_back({input});
  for (const auto& path : paths.out) {
    const auto& to = static_cast<const RemoteCall&>(*path.next).call();
    request.routes.push_back({path.output, to.facts().owner, to.backward_request(), path.input});
  }
  return request;
}

bool RemoteCall::has_passed_on(std::uint32_t output) const {
  const auto routed = call_->notes().routed.view();
  return output < routed.size() && routed[output] != '\0';
}

bool RemoteCall::uses_itself(std::uint32_t input) const {
  const auto inner = inner_.view();
  return input < inner.size() && inner[input] != '\0';
}

void RemoteCall::require_whole_gradient(std::uint32_t input) const {
  SMP_REQUIRE(!uses_itself(input), "module '", call_->facts().path,
              "' lives on another rank and has used tensor ", input,
              " of its result for another part of its result. In one process a hook on it, "
              "retain_grad() or smp::grad() with respect to it sees the sum of all its gradients, "
              "here only those that arise at the caller. Look at a tensor of your own "
              "(x.view_as(x)) if these are enough, or place the module with its caller");
}

void RemoteCall::unpack(variable_list& gradients) {
  restore_forms(std::exchange(call_->notes().forms, Note()), gradients);
  gradients.resize(num_outputs());
  hang_on_graph(gradients);
  for (auto& own : passing_) {
    if (!own.gradient.defined()) continue;
    add_gradient(gradients[own.argument], std::exchange(own.gradient, at::Tensor()));
  }
  if (hooked_ != nullptr) hooked_->gradients = gradients;
}

/// Gives gradients that the owner has a graph of their history: a call like this one, whose
/// arguments are the gradients that came and the arguments of this one. It leads to this one, too,
/// so that a pass over it comes here afterwards.
void RemoteCall::hang_on_graph(variable_list& gradients) {
  auto edges = std::exchange(histories_, {});
  auto graph = call_->take_gradient_graph();
  if (graph.call == nullptr) return;
  edges.insert(edges.end(), next_edges().begin(), next_edges().end());
  edges.emplace_back(owner_of<Node>(this), 0);
  const auto node = make_node<RemoteCall>(std::move(graph.call));
  node->set_next_edges(std::move(edges));
  node->set_inner(std::move(graph.inner));
  node->set_older();
  const auto requires_grad = flags_of(graph.requires_grad);
  for (std::size_t i = 0; i < requires_grad.size(); ++i) {
    if (requires_grad[i]) {
      torch::autograd::set_history(gradients.at(i), node);
    } else {
      add_input_without_history(*node, gradients.at(i));
    }
  }
}

}  // namespace smp::server
