// deferred/meta_scope.cpp: where the operators of a MetaScope go.
#include "deferred/meta_scope.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/broadcast_tensors.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "deferred/example.h"
#include "deferred/meta_kernels.h"

namespace smp::deferred {
namespace {

bool any_without_values(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  bool found = std::any_of(stack.begin() + static_cast<std::ptrdiff_t>(first_argument(op, stack)),
                           stack.end(), [](const c10::IValue& value) {
                             return value.isStorage() && !value.toStorage().device().is_cpu();
                           });
  map_arguments(op, stack, [&](const at::Tensor& tensor, bool) {
    found = found || !tensor.device().is_cpu();
    return tensor;
  });
  return found;
}

bool names_another_device(const c10::IValue* device) {
  return device != nullptr && device->isDevice() && !device->toDevice().is_cpu();
}

/// True if both are the same view of one storage. Multi-head attention asks whether query, key and
/// value are one tensor; computed values, which nobody knows here, are taken to differ.
bool same_tensor(const at::Tensor& a, const at::Tensor& b) {
  return a.is_same(b) || (a.is_alias_of(b) && a.storage_offset() == b.storage_offset() &&
                          a.sizes() == b.sizes() && a.strides() == b.strides());
}

/// Returns all elements as if each were selected, since nobody knows the mask; the graph is that of
/// selected values.
at::Tensor select_all(const at::Tensor& tensor, const at::Tensor& mask) {
  return at::broadcast_tensors({tensor, mask})[0].reshape({-1});
}

/// Answers operators whose result depends on values, but of which a trace needs a shape only.
/// Returns false if `op` is not one.
/// @param none  nothing is selected
bool answer_by_shape(const c10::OperatorHandle& op, torch::jit::Stack& stack, bool none) {
  const auto& name = op.schema().name();
  if (name != "aten::equal" && name != "aten::masked_select") return false;
  if (!op.schema().overload_name().empty()) return false;
  const auto b = torch::jit::pop(stack).toTensor();
  const auto a = torch::jit::pop(stack).toTensor();
  if (name == "aten::equal") {
    stack.emplace_back(same_tensor(a, b));
  } else {
    stack.emplace_back(none ? select_all(a, b).narrow(0, 0, 0) : select_all(a, b));
  }
  return true;
}

bool is_mask(const std::optional<at::Tensor>& index) {
  return index && index->defined() && index->dim() > 0 &&
         (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte);
}

bool takes_indices(const c10::OperatorHandle& op) {
  const auto& name = op.schema().name();
  return name == "aten::index" || name == "aten::index_put" || name == "aten::index_put_" ||
         name == "aten::_unsafe_index" || name == "aten::_index_put_impl_";
}

at::Tensor places(std::int64_t count, const at::Tensor& like) {
  return at::empty({count}, like.options().dtype(at::kLong).device(at::kMeta));
}

/// Returns `value` as a scalar of the kind that the tensor's dtype has.
at::Scalar scalar_of(const at::Tensor& tensor, double value) {
  if (at::isFloatingType(tensor.scalar_type())) return value;
  if (tensor.scalar_type() == at::kBool) return value != 0;
  if (at::isComplexType(tensor.scalar_type())) return c10::complex<double>(value, 0);
  return static_cast<std::int64_t>(value);
}

/// True if a meta tensor can stand for `tensor`.
bool has_shape_only(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_nested() &&
         tensor.has_storage();
}

/// Returns the meta tensor in the place of `tensor`, with its graph.
at::Tensor in_shape(const at::Tensor& tensor) {
  if (!has_shape_only(tensor)) return tensor;
  if (tensor.is_meta() || !tensor.requires_grad() || !at::GradMode::is_enabled()) {
    return shape_of(tensor);
  }
  const at::DisableRecordFunctionGuard unpriced;
  return tensor.to(at::kMeta);
}

/// True if LibTorch tells the shapes of the results of `op` right, or says that it cannot.
bool takes_shapes(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto& name = op.schema().name();
  bool plain = name != "aten::__lshift__" && name != "aten::__rshift__" && name != "aten::isin" &&
               name.find("sparse") == std::string::npos;
  for (const auto& argument : op.schema().arguments()) plain = plain && !argument.is_out();
  map_arguments(op, stack, [&](const at::Tensor& tensor, bool) {
    plain = plain && has_shape_only(tensor);
    return tensor;
  });
  return plain;
}

/// Adds the operands in `given` to the graph of the results in `stack`, which came about without.
void follow_gradients(const torch::jit::Stack& given, std::size_t first, torch::jit::Stack& stack) {
  if (!at::GradMode::is_enabled()) return;
  std::vector<at::Tensor> operands;
  for (std::size_t i = first; i < given.size(); ++i) {
    given[i].visit([&](const c10::IValue& value) {
      if (value.isTensor() && value.toTensor().defined() && value.toTensor().requires_grad()) {
        operands.push_back(value.toTensor());
      }
      return false;
    });
  }
  map_results(stack, first, [&](const at::Tensor& tensor, bool) {
    auto result = tensor;
    const auto type = tensor.scalar_type();
    if (!tensor.is_meta() || !(at::isFloatingType(type) || at::isComplexType(type))) return result;
    const bool written = std::any_of(given.begin(), given.end(), [&](const c10::IValue& value) {
      return value.isTensor() && value.toTensor().is_same(tensor);
    });
    if (written || tensor.requires_grad() || tensor.is_view()) return result;
    for (const auto& operand : operands) {
      if (operand.is_meta()) result = result.add(operand.sum().mul(0));
    }
    return result;
  });
}

}  // namespace

MetaScope::MetaScope(Value value) : value_(std::move(value)), scope_(*this) { add_meta_kernels(); }

/// Puts the value in the place of a tensor that is asked for it. Returns false without one.
bool MetaScope::answer(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
  const auto& name = op.schema().name();
  const bool asks = name == "aten::item" || name == "aten::_local_scalar_dense";
  const bool asks_whether = name == "aten::is_nonzero";
  if (!value_ || (!asks && !asks_whether)) return false;
  const auto& tensor = stack.back().toTensor();
  if (tensor.numel() != 1) return false;  // LibTorch says what is wrong
  const auto value = scalar_of(tensor, value_());
  torch::jit::drop(stack, 1);
  stack.emplace_back(asks ? c10::IValue(value) : c10::IValue(value.toDouble() != 0));
  return true;
}

/// Answers operators whose results have as many elements as values decide: as many as there could
/// be if the value is not 0, else none (unique: one).
bool MetaScope::answer_how_many(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
  const auto& name = op.schema().name();
  if (!value_ || (name != "aten::nonzero" && name != "aten::_unique2")) return false;
  if (!op.schema().overload_name().empty()) return false;
  const bool all = value_() != 0;
  const auto tensor = stack[first_argument(op, stack)].toTensor();
  const bool nonzero = name == "aten::nonzero";
  const auto some = nonzero ? 0 : std::min<std::int64_t>(1, tensor.numel());
  const auto count = all ? tensor.numel() : some;
  torch::jit::drop(stack, op.schema().arguments().size());
  if (nonzero) {
    stack.emplace_back(at::empty({count, tensor.dim()}, places(0, tensor).options()));
  } else {
    stack.emplace_back(at::empty({count}, tensor.options().device(at::kMeta)));
    stack.emplace_back(at::empty(tensor.sizes(), places(0, tensor).options()));
    stack.emplace_back(places(count, tensor));
  }
  return true;
}

/// Replaces masks among the indices of `op`, as if all elements were set, or none.
void MetaScope::open_masks(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
  if (!value_ || !takes_indices(op)) return;
  auto& indices = stack[first_argument(op, stack) + 1];
  if (!indices.isList()) return;
  c10::List<std::optional<at::Tensor>> opened;
  bool any = false;
  for (const std::optional<at::Tensor> index : indices.to<c10::List<std::optional<at::Tensor>>>()) {
    if (!is_mask(index)) {
      opened.push_back(index);
      continue;
    }
    any = true;
    const auto count = value_() != 0 ? index->numel() : 0;
    for (std::int64_t d = 0; d < index->dim(); ++d) opened.push_back(places(count, *index));
  }
  if (any) indices = opened;
}

/// Answers an operator that gives one number or truth value and nothing else.
bool MetaScope::answer_question(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
  const auto& returns = op.schema().returns();
  if (!value_ || returns.size() != 1 || !asks(op)) return false;
  const auto kind = returns[0].type()->kind();
  const bool whether = kind == c10::TypeKind::BoolType;
  if (!whether && kind != c10::TypeKind::IntType && kind != c10::TypeKind::FloatType) return false;
  const double value = value_();
  torch::jit::drop(stack, op.schema().arguments().size());
  if (whether) {
    stack.emplace_back(value != 0);
  } else if (kind == c10::TypeKind::FloatType) {
    stack.emplace_back(value);
  } else {
    stack.emplace_back(static_cast<std::int64_t>(value));
  }
  return true;
}

/// Returns the values that give as many elements as value_ says, where values decide that.
Example MetaScope::example_for(const c10::OperatorHandle& op) const {
  if (!value_ || value_() == 0) return Example::kZeros;
  const bool counts_kinds = op.schema().name().find("unique") != std::string::npos;
  return counts_kinds ? Example::kDistinct : Example::kOnes;
}

/// Runs `op` on shapes, or else on values that are made up.
void MetaScope::run_on_shapes(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
  const auto given = stack;
  if (takes_shapes(op, stack)) {
    try {
      const ReadablePointers readable(op, stack);
      return op.callBoxed(&stack);
    } catch (const c10::Error&) {
      if (!value_) throw;
    }
  }
  stack = given;
  if (answer_question(op, stack)) return;
  const auto first = first_argument(op, stack);
  try {
    run_by_example(op, stack, example_for(op));
  } catch (const c10::Error& error) {
    if (!value_) throw;
    throw UnsupportedError(
        base::concat(op.schema().name(),
                     " failed where a step is run on shapes alone, with values that are made up: ",
                     error.what_without_backtrace()));
  }
  follow_gradients(given, first, stack);
}

void MetaScope::run(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  auto* device = device_argument(op, stack);
  if (is_factory(op, stack)) {
    if (!device->isNone() && !names_another_device(device)) return op.callBoxed(&stack);
    *device = c10::Device(at::kMeta);
    return run_on_shapes(op, stack);
  }
  if (!any_without_values(op, stack) && !names_another_device(device)) {
    return op.callBoxed(&stack);
  }
  if (device != nullptr && device->isDevice()) *device = c10::Device(at::kMeta);
  map_arguments(op, stack, [](const at::Tensor& tensor, bool) { return in_shape(tensor); });
  open_masks(op, stack);
  const bool none = value_ && op.schema().name() == "aten::masked_select" && value_() == 0;
  if (answer_by_shape(op, stack, none) || answer(op, stack) || answer_how_many(op, stack)) return;
  run_on_shapes(op, stack);
}

}  // namespace smp::deferred
