// server/requests/gradient_graphs.cpp: the gradients of the request are the arguments of a backward
// that runs like a forward.
#include "server/requests/gradient_graphs.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "server/graph/inner_outputs.h"
#include "server/protocol/flag_note.h"
#include "server/values/tensor_forms.h"
#include "server/values/tensor_memory.h"

namespace smp::server {
BackwardResponse GradientGraphs::run(BackwardRequest& request, const Record& record,
                                     ExecutionScope& scope) {
  SMP_ASSERT(request.only_inputs, "gradients with a graph that go into leaves");
  BackwardResponse response;
  auto inputs = make_boundary(request.gradients, flags_of(request.history));
  inputs->belongs_to({record.module, record.microbatch, core_.step->number});
  inputs->extends(record.inputs);
  edge_list roots;
  variable_list gradients;
  for (std::size_t i = 0; i < record.outputs.size(); ++i) {
    if (!record.outputs[i].is_valid() || !request.gradients.at(i).defined()) continue;
    roots.push_back(record.outputs[i]);
    gradients.push_back(request.gradients[i]);
  }
  auto options = pass_options(/*keep_graph=*/true, core_);
  options.random_key = scope.random_key_of_hooks();
  options.create_graph = true;
  options.accumulate = false;
  const auto edges = BoundaryInput::edges_into(record.inputs);
  if (!edges.empty())
    response.gradients = run_backward(roots, std::move(gradients), options, edges);
  keep_record(record, std::move(inputs), response, request.record, scope);
  response.forms = take_forms(response.gradients, "argument gradient",
                              core_.scopes.modules.path(record.module), /*layout=*/false);
  copy_what_others_hold(response.gradients);
  return response;
}

std::optional<GraphBorder> GradientGraphs::border_of(const BackwardRequest& request) const {
  const auto* const older =
      request.leaves_rest_to ? core_.step->records.find(request.leaves_rest_to) : nullptr;
  return older == nullptr ? std::nullopt : std::optional<GraphBorder>(older->outputs);
}

/// What an earlier pass over the same graph has left, and nobody took, goes.
void GradientGraphs::leave(const BackwardRequest& request, GraphBorder&& border) {
  auto* const older = core_.step->records.find(request.leaves_rest_to);
  if (older == nullptr) return;  // the step has failed
  std::erase_if(older->left, [&](const auto& rest) { return rest.first == request.record; });
  auto rest = border.take();
  if (!rest.edges.empty()) older->left.emplace_back(request.record, std::move(rest));
}

bool GradientGraphs::has_left(const BackwardRequest& request) const {
  if (!request.leaves_rest_to) return false;
  const auto* const older = core_.step->records.find(request.leaves_rest_to);
  return older != nullptr &&
         std::any_of(older->left.begin(), older->left.end(),
                     [&](const auto& rest) { return rest.first == request.record; });
}

void GradientGraphs::add_rest(const BackwardRequest& request, const Record& record,
                              edge_list& roots, variable_list& gradients) {
  for (const auto& younger : request.takes_rest_of) {
    for (const auto& [from, rest] : record.left) {
      if (from != younger) continue;
      roots.insert(roots.end(), rest.edges.begin(), rest.edges.end());
      gradients.insert(gradients.end(), rest.gradients.begin(), rest.gradients.end());
    }
  }
}

/// Keeps the graph of the gradients, unless they have none.
void GradientGraphs::keep_record(const Record& of, NodePointer<BoundaryInput> inputs,
                                 BackwardResponse& response, RecordId older,
                                 ExecutionScope& scope) {
  edge_list outputs;
  TensorFlags requires_grad;
  for (const auto& gradient : response.gradients) {
    const bool differentiable = gradient.defined() && gradient.requires_grad();
    requires_grad.push_back(differentiable);
    outputs.push_back(differentiable ? torch::autograd::impl::gradient_edge(gradient)
                                     : torch::autograd::Edge());
  }
  if (!requires_grad.any()) return;
  const auto turns = of.turns != nullptr ? of.turns : std::make_shared<GraphTurns>();
  if (auto* const walked = core_.step->records.find(older)) walked->turns = turns;
  const auto position = scope.next_call(1);
  const auto execution =
      core_.accumulator.open(of.microbatch, position.caller.child(position.ordinal),
                             scope.identity().after_first_backward);
  core_.accumulator.recorded(execution, outputs);
  core_.step->admission.keep(of.microbatch);
  response.requires_grad = note_of(requires_grad);
  response.inner = note_of(inner_outputs(response.gradients, response.gradients));
  response.record =
      core_.step->records.add({std::move(inputs), std::move(outputs), of.module, of.microbatch,
                               execution, of.modes, position, of.settings, 0, turns});
}

}  // namespace smp::server
