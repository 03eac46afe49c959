// server/guarded_tensor.cpp: a dispatch key that no kernel serves, and the boxed fallback for it.
#include "server/guarded_tensor.h"

#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <utility>

#include "base/check.h"

namespace smp::server {
namespace {

/// Comes before autograd, autocast and devices, and nothing else uses it.
constexpr auto kGuarded = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

/// Asks the guards of the tensors in `value`. Returns how many there were.
int ask_guards(const c10::IValue& value, const c10::OperatorHandle& op, bool writes) {
  if (value.isTensor()) {
    auto* guard = guard_of(value.toTensor());
    if (guard == nullptr) return 0;
    guard->before_use(value.toTensor(), op.schema().name(), writes);
    return 1;
  }
  int asked = 0;
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      asked += ask_guards(c10::IValue(tensor), op, writes);
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) asked += ask_guards(element, op, writes);
  }
  return asked;
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto first = stack->size() - arguments.size();
  int asked = 0;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    asked += ask_guards((*stack)[first + i], op, alias != nullptr && alias->isWrite());
  }
  SMP_ASSERT(asked > 0, op.schema().name());
  op.callBoxed(stack);
}

/// A TensorImpl whose key set is that of no device; with autograd's keys, whatever mode is on.
template <class... Arguments>
c10::intrusive_ptr<c10::TensorImpl> make_impl(Arguments&&... arguments) {
  const c10::InferenceMode no_inference(false);
  return c10::make_intrusive<c10::TensorImpl>(std::forward<Arguments>(arguments)...);
}

void forget_graphs(const at::Tensor& leaf) {
  if (auto* meta = torch::autograd::impl::get_autograd_meta(leaf)) meta->grad_accumulator_.reset();
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

void guard_without_memory(const at::Tensor& tensor, c10::intrusive_ptr<TensorGuard> guard,
                          const std::string& data_text) {
  SMP_ASSERT(can_be_guarded(tensor));
  const auto device = tensor.is_meta() ? at::Device(at::kCPU) : tensor.device();
  auto impl = make_impl(c10::DispatchKeySet(kGuarded), tensor.dtype(), device);
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  impl->release_storage_and_set_meta_custom_data_ptr_error_msg_(data_text);
  impl->set_backend_meta(std::move(guard));
  tensor.unsafeGetTensorImpl()->shallow_copy_from(impl);
  forget_graphs(tensor);
}

void guard_with_memory(const at::Tensor& tensor, c10::intrusive_ptr<TensorGuard> guard) {
  SMP_ASSERT(can_be_guarded(tensor));
  auto impl =
      make_impl(c10::Storage(tensor.storage()), c10::DispatchKeySet(kGuarded), tensor.dtype());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  impl->set_backend_meta(std::move(guard));
  tensor.unsafeGetTensorImpl()->shallow_copy_from(impl);
}

void unguard(const at::Tensor& tensor, const at::Tensor& plain) {
  tensor.unsafeGetTensorImpl()->shallow_copy_from(plain.getIntrusivePtr());
}

TensorGuard* guard_of(const at::Tensor& tensor) noexcept {
  if (!tensor.defined() || !tensor.key_set().has(kGuarded)) return nullptr;
  return dynamic_cast<TensorGuard*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
}

bool can_be_guarded(const at::Tensor& tensor) noexcept {
  return tensor.layout() == c10::kStrided && !tensor.is_nested() && !tensor.is_quantized() &&
         !tensor.is_mkldnn();
}

}  // namespace smp::server
