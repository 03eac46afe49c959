// deferred/meta_scope.cpp: where the operators of a MetaScope go.
#include "deferred/meta_scope.h"

#include <ATen/ops/broadcast_tensors.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "deferred/meta_kernels.h"

namespace smp::deferred {
namespace {

bool any_without_values(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  bool found = false;
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

void MetaScope::run(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  auto* device = device_argument(op, stack);
  if (is_factory(op, stack)) {
    if (device->isNone() || names_another_device(device)) *device = c10::Device(at::kMeta);
  } else if (any_without_values(op, stack) || names_another_device(device)) {
    if (device != nullptr && device->isDevice()) *device = c10::Device(at::kMeta);
    map_arguments(op, stack, [](const at::Tensor& tensor, bool) { return shape_of(tensor); });
    open_masks(op, stack);
    const bool none = value_ && op.schema().name() == "aten::masked_select" && value_() == 0;
    if (answer_by_shape(op, stack, none) || answer(op, stack) || answer_how_many(op, stack)) return;
  }
  const ReadablePointers readable(op, stack);
  op.callBoxed(&stack);
}

}  // namespace smp::deferred
