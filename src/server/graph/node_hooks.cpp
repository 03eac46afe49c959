// server/graph/node_hooks.cpp: which gradient a hook is about, and whether it may see it.
#include "server/graph/node_hooks.h"

#include <torch/csrc/autograd/cpp_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <string_view>
#include <typeinfo>

#include "server/graph/special_nodes.h"

namespace smp::server {
namespace {

/// Returns the input whose gradient `hook` gets; nullopt if that is not known. Types are compared
/// by name, because LibTorch does not export what typeid(Hook) would need.
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

/// True if one node here stands for several of one process: the arguments of an execution hang on
/// one node, and so do the outputs of a remote call.
bool stands_for_many(Node& node) {
  return typeid(node) == typeid(BoundaryInput) || dynamic_cast<AsyncNode*>(&node) != nullptr;
}

/// Throws UsageError if a hook would get only a part of a gradient. A hook that does not say which
/// input it is about is taken to get all.
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

/// Calls the hooks of a node that stands for several, except for hooks of tensors that no gradient
/// reaches.
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

}  // namespace

void call_tensor_hooks(Node& node, variable_list& inputs) {
  if (node.tensor_pre_hooks().empty() && node.retains_grad_hooks().empty()) return;
  if (stands_for_many(node)) return call_hooks_of_reached(node, inputs);
  for (const auto& hook : node.tensor_pre_hooks()) inputs = (*hook)(inputs);
  for (const auto& [input, hook] : node.retains_grad_hooks()) inputs = (*hook)(inputs);
}

bool is_hooked(const at::Tensor& tensor) noexcept {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta != nullptr &&
         (!meta->hooks_.empty() || meta->cpp_hooks_list_ != nullptr || meta->retains_grad_);
}

}  // namespace smp::server
