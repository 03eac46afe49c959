// d2d/tensors/tensor_data.cpp: see the header. For CPU tensors nothing but the rare copy of
// a strided one is dispatched.
#include "d2d/tensors/tensor_data.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/variable.h>

#include <cstring>

#include "base/check.h"
#include "base/machine/home_device.h"

namespace smp::d2d {
namespace {

/// Makes a tensor outside of autograd, whatever the thread's modes.
at::Tensor new_device_tensor(at::IntArrayRef sizes, c10::ScalarType dtype, c10::DeviceType type) {
  SMP_REQUIRE_AS(UnsupportedError, c10::impl::hasDeviceGuardImpl(type), "a tensor on the device ",
                 c10::DeviceTypeName(type, /*lower_case=*/true),
                 ", and the LibTorch of this rank knows no such device.");
  const c10::InferenceMode normal(false);
  const at::AutoDispatchBelowADInplaceOrView no_history;
  return at::empty(sizes, at::TensorOptions(dtype).device(base::home_of(type)));
}

}  // namespace

bool is_sendable_dtype(c10::ScalarType dtype) noexcept {
  switch (dtype) {
    case c10::ScalarType::Bool:
    case c10::ScalarType::Byte:
    case c10::ScalarType::Char:
    case c10::ScalarType::Short:
    case c10::ScalarType::Int:
    case c10::ScalarType::Long:
    case c10::ScalarType::UInt16:
    case c10::ScalarType::UInt32:
    case c10::ScalarType::UInt64:
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Float:
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexHalf:
    case c10::ScalarType::ComplexFloat:
    case c10::ScalarType::ComplexDouble:
    case c10::ScalarType::Float8_e5m2:
    case c10::ScalarType::Float8_e4m3fn:
    case c10::ScalarType::Float8_e5m2fnuz:
    case c10::ScalarType::Float8_e4m3fnuz:
    case c10::ScalarType::Float8_e8m0fnu:
    case c10::ScalarType::Float4_e2m1fn_x2:  // two in a byte, which is its element
      return true;
    default:
      return false;
  }
}

void check_sendable(const at::Tensor& tensor, std::size_t index) {
  SMP_REQUIRE_AS(UnsupportedError, !tensor.is_meta(), "sending tensor ", index, " ", tensor.sizes(),
                 ": it is on the meta device and has no values.");
  SMP_REQUIRE_AS(UnsupportedError,
                 tensor.layout() == c10::kStrided && !tensor.unsafeGetTensorImpl()->is_nested(),
                 "sending tensor ", index, ": its layout is ", tensor.layout(),
                 " or nested; make it a dense tensor first.");
  SMP_REQUIRE_AS(UnsupportedError, is_sendable_dtype(tensor.scalar_type()), "sending tensor ",
                 index, " ", tensor.sizes(), ": elements of type ", tensor.scalar_type(),
                 " cannot be sent; convert it first.");
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor._is_zerotensor();
}

at::Tensor detached(const at::Tensor& tensor) {
  return torch::autograd::make_variable_non_differentiable_view(tensor, tensor);
}

at::Tensor contiguous_data(const at::Tensor& tensor) {
  if (is_plain(tensor)) return tensor;
  c10::InferenceMode normal(false);
  at::AutoDispatchBelowADInplaceOrView no_history;
  at::Tensor copy = new_tensor(tensor.sizes(), tensor.scalar_type(), tensor.device().type());
  copy.copy_(tensor);
  return copy;
}

at::Tensor new_tensor(at::IntArrayRef sizes, c10::ScalarType dtype, c10::DeviceType device) {
  if (device != c10::DeviceType::CPU) return new_device_tensor(sizes, dtype, device);
  if (!c10::InferenceMode::is_enabled()) return at::Tensor(at::detail::empty_cpu(sizes, dtype));
  c10::InferenceMode normal(false);
  return at::Tensor(at::detail::empty_cpu(sizes, dtype));
}

at::Tensor on_host(const at::Tensor& tensor) {
  const c10::InferenceMode normal(false);
  const at::AutoDispatchBelowADInplaceOrView no_history;
  at::Tensor copy = new_tensor(tensor.sizes(), tensor.scalar_type());
  copy.copy_(tensor);
  return copy;
}

at::Tensor on_device(const at::Tensor& tensor, c10::DeviceType device) {
  const c10::InferenceMode normal(false);
  const at::AutoDispatchBelowADInplaceOrView no_history;
  at::Tensor copy = new_tensor(tensor.sizes(), tensor.scalar_type(), device);
  copy.copy_(tensor);
  return copy;
}

at::Tensor independent_copy(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const at::Tensor source = contiguous_data(tensor);
  if (!source.is_same(tensor)) return source;
  at::Tensor copy = new_tensor(source.sizes(), source.scalar_type(), source.device().type());
  if (!source.device().is_cpu()) {
    const c10::InferenceMode normal(false);
    const at::AutoDispatchBelowADInplaceOrView no_history;
    copy.copy_(source);
  } else if (source.nbytes() > 0) {
    std::memcpy(copy.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
  }
  return copy;
}

}  // namespace smp::d2d
