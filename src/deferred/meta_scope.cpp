// deferred/meta_scope.cpp: where the operators of a MetaScope go.
#include "deferred/meta_scope.h"

#include <ATen/ops/broadcast_tensors.h>

#include "deferred/meta_kernels.h"

namespace smp::deferred {
namespace {

bool any_meta(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  bool found = false;
  map_arguments(op, stack, [&](const at::Tensor& tensor, bool) {
    found = found || tensor.is_meta();
    return tensor;
  });
  return found;
}

/// Multi-head attention asks whether query, key and value are one tensor; computed values, which
/// nobody knows here, are taken to differ.
bool same_tensor(const at::Tensor& a, const at::Tensor& b) {
  return a.is_same(b) || (a.is_alias_of(b) && a.storage_offset() == b.storage_offset() &&
                          a.sizes() == b.sizes() && a.strides() == b.strides());
}

/// As if all were selected: nobody knows the mask, and the graph is that of the selected values.
at::Tensor select_all(const at::Tensor& tensor, const at::Tensor& mask) {
  return at::broadcast_tensors({tensor, mask})[0].reshape({-1});
}

/// Operators whose answer depends on values, but of which a trace needs a shape only.
bool answer_by_shape(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto& name = op.schema().name();
  if (name != "aten::equal" && name != "aten::masked_select") return false;
  if (!op.schema().overload_name().empty()) return false;
  const auto b = torch::jit::pop(stack).toTensor();
  const auto a = torch::jit::pop(stack).toTensor();
  if (name == "aten::equal") {
    stack.emplace_back(same_tensor(a, b));
  } else {
    stack.emplace_back(select_all(a, b));
  }
  return true;
}

}  // namespace

MetaScope::MetaScope() : scope_(*this) { add_meta_kernels(); }

void MetaScope::run(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  auto* device = device_argument(op, stack);
  if (is_factory(op, stack)) {
    if (device->isNone()) *device = c10::Device(at::kMeta);
  } else if (any_meta(op, stack)) {
    if (device != nullptr && device->isDevice()) *device = c10::Device(at::kMeta);
    map_arguments(op, stack, [](const at::Tensor& tensor, bool) { return shape_of(tensor); });
    if (answer_by_shape(op, stack)) return;
  }
  const ReadablePointers readable(op, stack);
  op.callBoxed(&stack);
}

}  // namespace smp::deferred
