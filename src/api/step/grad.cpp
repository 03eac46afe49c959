// api/step/grad.cpp: LibTorch's grad(), walked by our executor, which can wait for other ranks.
#include "smp/grad.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "api/model/placed_parameters.h"
#include "api/rank/rank.h"
#include "api/rank/session_parts.h"
#include "base/check.h"
#include "server/backward/executor.h"
#include "server/promises/promised_tensor.h"
#include "server/running/execution_scope.h"

namespace smp {
namespace {

using server::edge_list;
using server::variable_list;

/// Fetches promised tensors, which may turn out to be others, with another history.
std::vector<at::Tensor> all_fetched(std::vector<at::Tensor> tensors) {
  for (auto& tensor : tensors) tensor = server::fetched(tensor);
  return tensors;
}

edge_list roots_of(const std::vector<at::Tensor>& outputs) {
  edge_list roots;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    SMP_REQUIRE(outputs[i].defined() && outputs[i].requires_grad(), "smp::grad(): output ", i,
                " does not require grad (or grad mode was off); nothing in it depends on an input");
    roots.push_back(torch::autograd::impl::gradient_edge(outputs[i]));
  }
  return roots;
}

variable_list gradients_of(const std::vector<at::Tensor>& outputs,
                           const std::vector<at::Tensor>& given) {
  SMP_REQUIRE(given.empty() || given.size() == outputs.size(), "smp::grad() with ", outputs.size(),
              " outputs and ", given.size(), " grad_outputs");
  variable_list gradients;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool has = i < given.size() && given[i].defined();
    SMP_REQUIRE(has || outputs[i].numel() == 1, "smp::grad(): output ", i, " has shape ",
                outputs[i].sizes(), "; reduce it to one number or pass grad_outputs");
    gradients.push_back(has ? given[i] : at::ones_like(outputs[i]));
  }
  return gradients;
}

/// Returns the edges at which gradients of the inputs arrive; invalid where nothing can lead to the
/// input.
edge_list captures_of(const std::vector<at::Tensor>& inputs) {
  edge_list captures;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    SMP_REQUIRE(inputs[i].defined() && inputs[i].requires_grad(), "smp::grad(): input ", i,
                " does not require grad");
    auto node = inputs[i].grad_fn();
    const auto number = static_cast<std::uint32_t>(inputs[i].output_nr());
    if (!node) node = torch::autograd::impl::try_get_grad_accumulator(inputs[i]);
    captures.emplace_back(std::move(node), number);
  }
  return captures;
}

void refuse_foreign(const std::vector<at::Tensor>& inputs) {
  const auto* session = SessionParts::find_current();
  if (session == nullptr) return;
  const PlacedParameters parameters(session->state);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    SMP_REQUIRE(!parameters.foreign(inputs[i]), "rank ", session->rank.topology().rank(),
                ": smp::grad(): input ", i, ", shape ", inputs[i].sizes(),
                ", is a parameter that lives on another rank; place its module with the code that "
                "calls smp::grad() (model.set_partition()), or use model.backward()");
  }
}

}  // namespace

std::vector<at::Tensor> grad(const std::vector<at::Tensor>& outputs,
                             const std::vector<at::Tensor>& inputs,
                             const std::vector<at::Tensor>& grad_outputs,
                             std::optional<bool> retain_graph, bool create_graph,
                             bool allow_unused) {
  SMP_REQUIRE(!inputs.empty(), "smp::grad() with respect to no input");
  if (auto* scope = server::ExecutionScope::current()) scope->outgoing().finish();
  const auto there = all_fetched(outputs);
  const auto roots = roots_of(there);
  auto gradients = gradients_of(there, all_fetched(grad_outputs));
  const auto captures = captures_of(all_fetched(inputs));
  refuse_foreign(inputs);
  server::BackwardOptions options;
  options.keep_graph = retain_graph.value_or(create_graph);
  options.create_graph = create_graph;
  options.accumulate = false;
  auto found = server::run_backward(roots, std::move(gradients), options, captures);
  for (std::size_t i = 0; i < found.size(); ++i) {
    SMP_REQUIRE(allow_unused || found[i].defined(), "smp::grad(): input ", i, ", shape ",
                inputs[i].sizes(),
                ", was not used in the graph of the outputs; pass allow_unused = true if "
                "that is meant");
  }
  return found;
}

}  // namespace smp
