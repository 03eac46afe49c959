// deferred/operator_hook.cpp: the boxed fallback, and how arguments are found in a stack.
#include "deferred/operator_hook.h"

#include <torch/library.h>

#include <utility>

namespace smp::deferred {
namespace {

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::DeferredInit);
  if (auto* hook = operator_hook().get()) {
    hook->run(op, *stack);
  } else {
    run_without_hook(op, *stack);
  }
}

at::Tensor map_one(const at::Tensor& tensor, bool written, const TensorMap& map) {
  return tensor.defined() ? map(tensor, written) : tensor;
}

void map_value(c10::IValue& value, bool written, const TensorMap& map) {
  if (value.isTensor()) {
    value = map_one(value.toTensor(), written, map);
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> mapped;
    for (const auto& tensor : value.toTensorVector()) {
      mapped.push_back(map_one(tensor, written, map));
    }
    value = std::move(mapped);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> mapped;
    for (const auto& tensor : value.toOptionalTensorVector()) {
      mapped.push_back(tensor ? std::optional(map_one(*tensor, written, map)) : std::nullopt);
    }
    value = std::move(mapped);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

const base::FiberLocal<OperatorHook>& operator_hook() {
  static const base::FiberLocal<OperatorHook> hook;
  return hook;
}

HookScope::HookScope(OperatorHook& hook)
    : hook_(operator_hook(), &hook), include_(c10::DispatchKey::DeferredInit) {}

std::size_t first_argument(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  return stack.size() - op.schema().arguments().size();
}

void map_arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack, const TensorMap& map) {
  const auto& arguments = op.schema().arguments();
  const auto first = first_argument(op, stack);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    map_value(stack[first + i], alias != nullptr && alias->isWrite(), map);
  }
}

void map_results(torch::jit::Stack& stack, std::size_t first, const TensorMap& map) {
  for (std::size_t i = first; i < stack.size(); ++i) map_value(stack[i], false, map);
}

c10::IValue* device_argument(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto index = op.schema().argumentIndexWithName("device");
  if (!index) return nullptr;
  return &stack[first_argument(op, stack) + static_cast<std::size_t>(*index)];
}

bool is_factory(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!op.schema().argumentIndexWithName("device")) return false;
  for (std::size_t i = first_argument(op, stack); i < stack.size(); ++i) {
    const auto& value = stack[i];
    if (value.isTensor() && value.toTensor().defined()) return false;
    if (value.isTensorList() || value.isOptionalTensorList()) return false;
  }
  return true;
}

}  // namespace smp::deferred
