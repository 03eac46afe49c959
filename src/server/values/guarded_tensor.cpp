// server/values/guarded_tensor.cpp: a dispatch key that no kernel serves, and the boxed fallback
// for it.
#include "server/values/guarded_tensor.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <utility>

#include "base/check.h"
#include "base/machine/home_device.h"

namespace smp::server {
namespace {

/// Asks the guards of the tensors that an operator got, and replaces each by its stand-in, if it
/// has one.
class Asking {
 public:
  Asking(const c10::OperatorHandle& op, bool writes) : op_(op), writes_(writes) {}

  void about(c10::IValue& value) {
    if (value.isTensor()) {
      auto stand_in = about(value.toTensor());
      if (stand_in.defined()) value = std::move(stand_in);
    } else if (value.isTensorList()) {
      auto list = value.toTensorList();
      for (std::size_t i = 0; i < list.size(); ++i) {
        auto stand_in = about(list.get(i));
        if (stand_in.defined()) value = replaced(value.toTensorList(), i, std::move(stand_in));
      }
    } else if (value.isList()) {
      auto list = value.toList();
      for (std::size_t i = 0; i < list.size(); ++i) {
        c10::IValue element = list.get(i);
        const auto* const before =
            element.isTensor() ? element.toTensor().unsafeGetTensorImpl() : nullptr;
        about(element);
        if (before == nullptr || element.toTensor().unsafeGetTensorImpl() == before) continue;
        value = value.toList().copy();
        value.toList().set(i, element);
      }
    }
  }
  int asked() const noexcept { return asked_; }
  /// Some tensor keeps its guard, which would be asked again.
  bool watched() const noexcept { return watched_; }

 private:
  at::Tensor about(const at::Tensor& tensor) {
    auto* guard = guard_of(tensor);
    if (guard == nullptr) return {};
    ++asked_;
    guard->before_use(tensor, op_.schema().name(), writes_);
    guard = guard_of(tensor);
    if (guard == nullptr) return {};
    watched_ |= guard->looks_on();
    return guard->stand_in();
  }
  /// Returns a copy of `list` with one tensor replaced: the operator's caller keeps its own list.
  static c10::IValue replaced(const c10::List<at::Tensor>& list, std::size_t index,
                              at::Tensor&& tensor) {
    auto copy = list.copy();
    copy.set(index, std::move(tensor));
    return copy;
  }

  const c10::OperatorHandle& op_;
  const bool writes_;
  int asked_ = 0;
  bool watched_ = false;
};

/// LibTorch lets only its subclasses choose a tensor's dispatch keys.
struct KeysOfTensor : c10::TensorImpl {
  static void set(c10::TensorImpl& tensor, c10::DispatchKeySet keys) {
    constexpr auto own = &KeysOfTensor::key_set_;
    tensor.*own = keys;
  }
};

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto first = stack->size() - arguments.size();
  int asked = 0;
  bool watched = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    Asking asking(op, alias != nullptr && alias->isWrite());
    asking.about((*stack)[first + i]);
    asked += asking.asked();
    watched |= asking.watched();
  }
  SMP_ASSERT(asked > 0, op.schema().name());
  if (!watched) return op.callBoxed(stack);
  const c10::impl::ExcludeDispatchKeyGuard once(kGuarded);
  op.callBoxed(stack);
}

/// Makes a TensorImpl with the key set of no device, and with autograd's keys even while inference
/// mode is on.
template <class... Arguments>
c10::intrusive_ptr<c10::TensorImpl> make_impl(Arguments&&... arguments) {
  const c10::InferenceMode no_inference(false);
  return c10::make_intrusive<c10::TensorImpl>(std::forward<Arguments>(arguments)...);
}

/// Gives `tensor` the data and keys of `impl`. One of inference mode, which had no version, becomes
/// one that counts writes.
void take(const at::Tensor& tensor, const c10::intrusive_ptr<c10::TensorImpl>& impl) {
  const bool has_version = !tensor.is_inference();
  tensor.unsafeGetTensorImpl()->shallow_copy_from(impl);
  if (!has_version) tensor.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(0));
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
  const auto device = tensor.is_meta() ? base::home_device() : tensor.device();
  auto impl = make_impl(c10::DispatchKeySet(kGuarded), tensor.dtype(), device);
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  impl->release_storage_and_set_meta_custom_data_ptr_error_msg_(data_text);
  impl->set_backend_meta(std::move(guard));
  take(tensor, impl);
  forget_graphs(tensor);
}

void guard_with_memory(const at::Tensor& tensor, c10::intrusive_ptr<TensorGuard> guard) {
  SMP_ASSERT(can_be_guarded(tensor));
  auto impl =
      make_impl(c10::Storage(tensor.storage()), c10::DispatchKeySet(kGuarded), tensor.dtype());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  impl->set_backend_meta(std::move(guard));
  take(tensor, impl);
}

void watch_uses(const at::Tensor& tensor, c10::intrusive_ptr<TensorGuard> guard) {
  auto& impl = *tensor.unsafeGetTensorImpl();
  impl.set_backend_meta(std::move(guard));
  KeysOfTensor::set(impl, impl.key_set().add(kGuarded));
}

void unwatch_uses(const at::Tensor& tensor) noexcept {
  auto& impl = *tensor.unsafeGetTensorImpl();
  KeysOfTensor::set(impl, impl.key_set().remove(kGuarded));
  impl.set_backend_meta(nullptr);
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
