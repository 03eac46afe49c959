// deferred/operator_hook.cpp: the boxed fallback, and how arguments are found in a stack.
#include "deferred/operator_hook.h"

#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

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

/// Puts `mapped` in the place of a list, unless nothing in it changed: who called may hold the
/// list.
template <class Element, class Map>
void map_list(c10::IValue& value, const std::vector<Element>& elements, const Map& map) {
  c10::List<Element> mapped;
  bool changed = false;
  for (const auto& element : elements) {
    mapped.push_back(map(element, changed));
  }
  if (changed) value = std::move(mapped);
}

void map_value(c10::IValue& value, bool written, const TensorMap& map) {
  const auto map_noting = [&](const at::Tensor& tensor, bool& changed) {
    auto mapped = map_one(tensor, written, map);
    changed = changed || !mapped.is_same(tensor);
    return mapped;
  };
  if (value.isTensor()) {
    value = map_one(value.toTensor(), written, map);
  } else if (value.isTensorList()) {
    map_list(value, value.toTensorVector(), map_noting);
  } else if (value.isOptionalTensorList()) {
    map_list(value, value.toOptionalTensorVector(),
             [&](const std::optional<at::Tensor>& tensor, bool& changed) {
               return tensor ? std::optional(map_noting(*tensor, changed)) : std::nullopt;
             });
  }
}

/// True for numbers, text, and lists of them.
bool is_plain(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::BoolType:
    case c10::TypeKind::IntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::ComplexType:
    case c10::TypeKind::NumberType:
    case c10::TypeKind::SymBoolType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::SymFloatType:
    case c10::TypeKind::StringType:
      return true;
    case c10::TypeKind::ListType:
      return is_plain(*type.containedType(0));
    default:
      return false;
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

void visit_arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                     const std::function<void(const at::Tensor&)>& visit) {
  for (auto i = first_argument(op, stack); i < stack.size(); ++i) {
    stack[i].visit([&](const c10::IValue& value) {
      if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor());
      return false;  // go on, deeper
    });
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

bool is_of_libtorch(const c10::OperatorHandle& op) {
  return op.schema().name().rfind("aten::", 0) == 0;
}

bool asks(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  return !returns.empty() && std::all_of(returns.begin(), returns.end(), [](const auto& result) {
    return is_plain(*result.type());
  });
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
