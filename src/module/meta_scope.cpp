// module/meta_scope.cpp: where the operators of a MetaScope go.
#include "module/meta_scope.h"

#include "module/meta_kernels.h"

namespace smp::module {
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

}  // namespace

MetaScope::MetaScope() : scope_(*this) { add_meta_kernels(); }

void MetaScope::run(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  auto* device = device_argument(op, stack);
  if (is_factory(op, stack)) {
    if (device->isNone()) *device = c10::Device(at::kMeta);
  } else if (any_meta(op, stack)) {
    if (op.schema().name() == "aten::equal") {
      const auto b = torch::jit::pop(stack).toTensor();
      const auto a = torch::jit::pop(stack).toTensor();
      stack.emplace_back(same_tensor(a, b));
      return;
    }
    if (device != nullptr && device->isDevice()) *device = c10::Device(at::kMeta);
    map_arguments(op, stack, [](const at::Tensor& tensor, bool) { return shape_of(tensor); });
  }
  const ReadablePointers readable(op, stack);
  op.callBoxed(&stack);
}

}  // namespace smp::module
