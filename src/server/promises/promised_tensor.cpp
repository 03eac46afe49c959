// server/promises/promised_tensor.cpp: a TensorImpl that answers for its sizes, and the guard that
// operators ask.
#include "server/promises/promised_tensor.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/variable.h>

#include <string>
#include <utility>

#include "base/check.h"
#include "base/machine/home_device.h"
#include "server/promises/later_tensor.h"
#include "server/values/guarded_tensor.h"

namespace smp::server {
namespace {

class PromiseGuard final : public TensorGuard {
 public:
  PromiseGuard(std::shared_ptr<PromisedValues> values, std::size_t index)
      : values_(std::move(values)), index_(index) {}
  ~PromiseGuard() override { values_->forget(index_); }
  PromiseGuard(const PromiseGuard&) = delete;
  PromiseGuard& operator=(const PromiseGuard&) = delete;

  void before_use(const at::Tensor& tensor, const std::string&, bool) override { fetch(tensor); }
  at::Tensor stand_in() const override { return stand_in_; }
  void set_stand_in(at::Tensor value) { stand_in_ = std::move(value); }

  const std::shared_ptr<PromisedValues>& values() const noexcept { return values_; }
  std::size_t index() const noexcept { return index_; }

 private:
  std::shared_ptr<PromisedValues> values_;
  std::size_t index_;
  at::Tensor stand_in_;
};

PromiseGuard* promise_guard_of(const at::Tensor& tensor) noexcept {
  return dynamic_cast<PromiseGuard*>(guard_of(tensor));
}

/// The TensorImpl of a promised tensor. It overrides what LibTorch asks for without an operator,
/// such as sizes and strides.
class PromisedImpl final : public c10::TensorImpl {
 public:
  PromisedImpl(c10::intrusive_ptr<PromiseGuard> guard, caffe2::TypeMeta dtype, at::Device device)
      : TensorImpl(c10::DispatchKeySet(kGuarded), dtype, device) {
    set_custom_sizes_strides(SizesStridesPolicy::CustomSizes);
    release_storage_and_set_meta_custom_data_ptr_error_msg_(
        "the memory of a tensor was asked for that a module on another rank has promised, and that "
        "was not used so far; call smp::wait(tensor) first (smp/wait.h)");
    set_backend_meta(std::move(guard));
  }

  /// Releases the guard, which holds the call. The call has a weak reference to this, or the two
  /// would keep each other alive.
  void release_resources() override {
    set_backend_meta(nullptr);
    TensorImpl::release_resources();
  }
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override {
    TensorImpl::shallow_copy_from(impl);
    set_custom_sizes_strides(SizesStridesPolicy::Default);
    set_backend_meta(nullptr);
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allow_change) const override {
    const auto value = fetched(self());
    if (value.unsafeGetTensorImpl() != this) {
      return value.unsafeGetTensorImpl()->shallow_copy_and_detach(version, allow_change);
    }
    return TensorImpl::shallow_copy_and_detach(version, allow_change);
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allow_change) const override {
    return shallow_copy_and_detach(static_cast<const c10::VariableVersion&>(version), allow_change);
  }

 protected:
  // Once the value has come these are not asked any more, unless another tensor stands in.
  bool is_strides_like_custom(at::MemoryFormat format) const override {
    return value().unsafeGetTensorImpl()->is_strides_like(format);
  }
  c10::SymBool sym_is_non_overlapping_and_dense_custom() const override {
    return value().unsafeGetTensorImpl()->is_non_overlapping_and_dense();
  }
  c10::SymBool sym_is_contiguous_custom(at::MemoryFormat format) const override {
    return value().is_contiguous(format);
  }
  std::int64_t size_custom(std::int64_t dim) const override { return value().size(dim); }
  c10::SymInt sym_size_custom(std::int64_t dim) const override { return value().size(dim); }
  c10::IntArrayRef sizes_custom() const override { return value().sizes(); }
  c10::IntArrayRef strides_custom() const override { return value().strides(); }
  std::int64_t numel_custom() const override { return value().numel(); }
  std::int64_t storage_offset_custom() const override { return value().storage_offset(); }
  std::int64_t dim_custom() const override { return value().dim(); }
  c10::SymIntArrayRef sym_sizes_custom() const override { return value().sym_sizes(); }
  c10::SymIntArrayRef sym_strides_custom() const override { return value().sym_strides(); }
  c10::SymInt sym_numel_custom() const override { return value().numel(); }
  c10::SymInt sym_storage_offset_custom() const override { return value().storage_offset(); }

 private:
  at::Tensor self() const {
    return at::Tensor(c10::intrusive_ptr<TensorImpl>::unsafe_reclaim_from_nonowning(
        const_cast<PromisedImpl*>(this)));
  }
  /// Returns the value: this tensor or its stand-in, both of which live longer than references to
  /// their sizes and strides.
  at::Tensor value() const { return fetched(self()); }
};

}  // namespace

at::Tensor promised_tensor(std::shared_ptr<PromisedValues> values, std::size_t index,
                           at::ScalarType dtype, c10::DeviceType device) {
  const c10::InferenceMode no_inference(false);
  return at::Tensor(c10::make_intrusive<PromisedImpl>(
      c10::make_intrusive<PromiseGuard>(std::move(values), index),
      caffe2::TypeMeta::fromScalarType(dtype), base::home_of(device)));
}

PromiseOf promise_of(const at::Tensor& tensor) noexcept {
  const auto* guard = promise_guard_of(tensor);
  if (guard == nullptr || guard->stand_in().defined()) return {};
  return {guard->values(), guard->index()};
}

void fetch(const at::Tensor& tensor) {
  bring_values(tensor);
  auto* guard = promise_guard_of(tensor);
  if (guard == nullptr || guard->stand_in().defined()) return;
  const auto values = guard->values();
  auto [value, is_linked] = values->value(guard->index());
  guard = promise_guard_of(tensor);  // the wait may have suspended the fiber
  if (guard == nullptr || guard->stand_in().defined()) return;
  // Hooks of a tensor are those of its edge, and what is used from now on is the stand-in.
  if (value.requires_grad() && (is_linked || !tensor.requires_grad())) {
    torch::autograd::impl::set_gradient_edge(tensor, torch::autograd::impl::gradient_edge(value));
  }
  if (is_linked) return guard->set_stand_in(std::move(value));
  unguard(tensor, value);
}

at::Tensor fetched(const at::Tensor& tensor) {
  fetch(tensor);
  const auto* guard = promise_guard_of(tensor);
  return guard == nullptr ? tensor : guard->stand_in();
}

}  // namespace smp::server
