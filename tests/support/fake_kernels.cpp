// tests/support/fake_kernels.cpp: the CPU's kernels, run through tensors that lie where the
// elements of the device's really are.
#include "support/fake_kernels.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace smp::support::fake {
namespace {

bool is_fake(const at::Tensor& tensor) { return tensor.device().type() == kType; }

/// What is neither elements nor shape.
void copy_marks(const at::Tensor& from, const at::Tensor& to) {
  to._set_conj(from.is_conj());
  to._set_neg(from.is_neg());
  if (from.unsafeGetTensorImpl()->is_wrapped_number()) {
    to.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
}

/// Tensors of the device as CPU tensors that lie where their elements really are, and what becomes
/// of these as tensors of the device: their in-place changes are those of the originals, and views
/// of them become views of the originals.
class HostSide {
 public:
  /// CPU tensors stay what they are.
  at::Tensor lend(const at::Tensor& tensor) {
    if (!tensor.defined() || !is_fake(tensor)) return tensor;
    TORCH_CHECK(tensor.layout() == c10::kStrided, "the fake device has dense tensors only");
    auto* const impl = tensor.unsafeGetTensorImpl();
    auto twin = at::detail::make_tensor<c10::TensorImpl>(
        host_storage(tensor), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    twin.unsafeGetTensorImpl()->set_sizes_and_strides(impl->sizes(), impl->strides(),
                                                      impl->storage_offset());
    copy_marks(tensor, twin);
    lent_.push_back({tensor, twin});
    return twin;
  }

  /// Kernels may have resized what was lent to them.
  void take_back() const {
    for (const auto& [original, host] : storages_) {
      if (host.data() == memory().real(original.storage().data())) continue;
      resize_storage(original.storage(), host.nbytes());
      if (host.nbytes() == 0) continue;
      std::memcpy(memory().real(original.storage().data()), host.data(), host.nbytes());
    }
    for (const auto& [original, twin] : lent_) {
      if (original.sizes() == twin.sizes() && original.strides() == twin.strides()) continue;
      original.unsafeGetTensorImpl()->set_sizes_and_strides(twin.sizes(), twin.strides(),
                                                            twin.storage_offset());
    }
  }

  /// The result of a kernel, once all has been taken back.
  at::Tensor on_device(const at::Tensor& result) const {
    if (!result.defined()) return result;
    for (const auto& [original, twin] : lent_) {
      if (twin.is_same(result)) return original;
    }
    TORCH_CHECK(result.layout() == c10::kStrided, "the fake device has dense tensors only");
    for (const auto& [original, host] : storages_) {
      if (result.has_storage() && host.is_alias_of(result.storage())) return view(original, result);
    }
    return upload(result);
  }

 private:
  struct Lent {
    at::Tensor original, twin;
  };
  struct LentStorage {
    at::Tensor original;  // one of those that have it
    c10::Storage host;
  };

  /// One for all tensors that share memory, as kernels ask whether they do.
  c10::Storage host_storage(const at::Tensor& tensor) {
    for (const auto& [original, host] : storages_) {
      if (original.storage().is_alias_of(tensor.storage())) return host;
    }
    const auto& storage = tensor.storage();
    c10::DataPtr data(memory().real(storage.mutable_data()), c10::Device(c10::kCPU));
    c10::Storage host(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data),
                      c10::GetCPUAllocator(), storage.resizable());
    storages_.push_back({tensor, host});
    return host;
  }

  static at::Tensor view(const at::Tensor& original, const at::Tensor& result) {
    auto made = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW,
                                                         c10::Storage(original.storage()),
                                                         original.key_set(), result.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(),
                                                      result.storage_offset());
    copy_marks(result, made);
    return made;
  }

  static at::Tensor upload(const at::Tensor& result) {
    const auto source = result._is_zerotensor() ? result.clone() : result;
    at::Tensor made = at::detail::empty_strided_generic(source.sizes(), source.strides(),
                                                        &allocator(), kKeys, source.scalar_type());
    if (const auto bytes = made.storage().nbytes(); bytes > 0) {
      std::memcpy(memory().real(made.const_data_ptr()), source.const_data_ptr(), bytes);
    }
    copy_marks(source, made);
    return made;
  }

  std::vector<Lent> lent_;
  std::vector<LentStorage> storages_;
};

/// Runs the CPU's kernel of an operator on tensors of the device.
class HostCall {
 public:
  explicit HostCall(const c10::OperatorHandle& op) : op_(op) {}

  c10::IValue lend(const c10::Argument& argument, const c10::IValue& value) {
    if (is_generator(*argument.type())) {
      return cpu_generator(value.isNone() ? default_generator() : value.toGenerator());
    }
    if (value.isDevice()) return c10::Device(c10::kCPU);
    if (value.isTensor()) {
      check_device(argument, value.toTensor());
      return host_.lend(value.toTensor());
    }
    if (value.isTensorList()) return lend_list(argument, value.toTensorList());
    if (value.isOptionalTensorList()) return lend_indices(value.toOptionalTensorList());
    return value;
  }
  void take_back() const { host_.take_back(); }
  c10::IValue on_device(const c10::IValue& value) const {
    if (value.isTensor()) return host_.on_device(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(host_.on_device(tensor));
    return list;
  }

 private:
  static bool is_generator(const c10::Type& type) {
    const auto optional = type.cast<c10::OptionalType>();
    const auto& element = optional ? *optional->getElementType() : type;
    return element.kind() == c10::TypeKind::GeneratorType;
  }

  /// An accelerator would not do what this one could.
  void check_device(const c10::Argument& argument, const at::Tensor& tensor) const {
    if (!tensor.defined() || is_fake(tensor)) return;
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    TORCH_CHECK(tensor.device().is_cpu() && tensor.dim() == 0 && !written,
                "Expected all tensors to be on the same device, but ", op_.operator_name(),
                " on the fake device got '", argument.name(), "' ", tensor.sizes(), " on ",
                tensor.device());
  }

  c10::IValue lend_list(const c10::Argument& argument, const c10::List<at::Tensor>& tensors) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : tensors.vec()) {
      check_device(argument, tensor);
      list.push_back(host_.lend(tensor));
    }
    return list;
  }

  /// These may be on the CPU, on all devices.
  c10::IValue lend_indices(const c10::List<std::optional<at::Tensor>>& tensors) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : tensors.vec()) {
      list.push_back(tensor ? std::optional(host_.lend(*tensor)) : std::nullopt);
    }
    return list;
  }

  const c10::OperatorHandle& op_;
  HostSide host_;
};

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  require_own_process();
  ++counters().kernels;
  HostCall call(op);
  const auto& arguments = op.schema().arguments();
  auto value = stack->end() - static_cast<std::ptrdiff_t>(arguments.size());
  for (const auto& argument : arguments) {
    *value = call.lend(argument, *value);
    ++value;
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  call.take_back();
  const auto results = static_cast<std::ptrdiff_t>(op.schema().returns().size());
  for (value = stack->end() - results; value != stack->end(); ++value) {
    *value = call.on_device(*value);
  }
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  require_own_process();
  return at::detail::empty_generic(size, &allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &allocator(), kKeys,
                                           c10::dtype_or_default(dtype));
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size,
                         std::optional<at::MemoryFormat> format) {
  if (self.sizes() != size) {
    grow_storage(self.storage(), at::detail::computeStorageNbytesContiguous(size, self.itemsize(),
                                                                            self.storage_offset()));
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  }
  if (format) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, std::int64_t offset,
                        at::IntArrayRef size, at::IntArrayRef stride) {
  TORCH_CHECK(source.device_type() == kType, "the storage is not of the fake device");
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  impl->set_sizes_contiguous(size);
  if (!stride.empty()) impl->set_sizes_and_strides(size, stride);
  grow_storage(self.storage(), at::detail::computeStorageNbytes(self.sizes(), self.strides(),
                                                                self.itemsize(), offset));
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto size = static_cast<std::int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {size}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(),
                     source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  return set_storage(self, c10::Storage(c10::Storage::use_byte_size_t(), 0, &allocator(), true), 0,
                     {0}, {});
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool) {
  require_own_process();
  const bool from_device = is_fake(self);
  ++(!from_device ? counters().to_device : is_fake(to) ? counters().kernels : counters().to_host);
  HostSide host;
  host.lend(to).copy_(host.lend(self));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}

at::Scalar local_scalar(const at::Tensor& self) {
  ++counters().to_host;
  return at::_local_scalar_dense(HostSide().lend(self));
}

/// The CPU's takes no generator, but its default one.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  auto mask = at::empty_like(input, input.options().dtype(at::kBool));
  if (!train.value_or(true)) return {input.clone(), mask.fill_(true)};
  mask.bernoulli_(1 - p);
  return {input.mul(mask).mul_(p == 1 ? 0 : 1 / (1 - p)), mask};
}

using Optional = std::optional<at::Tensor>;

at::Tensor add_bias(const at::Tensor& gates, const Optional& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}
at::Tensor sum_if(bool wanted, const at::Tensor& gradient) {
  return wanted && gradient.defined() ? gradient.sum(0) : at::Tensor();
}

// Cells of recurrent layers, which LibTorch wants of devices and not of the CPU. Last comes what
// their backward passes are given: the gates before they are applied.

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input_gates,
                                                         const at::Tensor& hidden_gates,
                                                         const at::Tensor& cx,
                                                         const Optional& input_bias,
                                                         const Optional& hidden_bias) {
  const auto gates = add_bias(input_gates, input_bias) + add_bias(hidden_gates, hidden_bias);
  const auto part = gates.chunk(4, 1);
  const auto cy = part[1].sigmoid() * cx + part[0].sigmoid() * part[2].tanh();
  return {part[3].sigmoid() * cy.tanh(), cy, gates};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(
    const Optional& grad_hy, const Optional& grad_cy, const at::Tensor& cx, const at::Tensor& cy,
    const at::Tensor& gates, bool has_bias) {
  const auto gradients = at::_thnn_differentiable_lstm_cell_backward(
      grad_hy, grad_cy, gates, at::zeros_like(gates), {}, {}, cx, cy);
  const auto& of_gates = std::get<0>(gradients);
  return {of_gates, std::get<2>(gradients), sum_if(has_bias, of_gates)};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates,
                                            const at::Tensor& hidden_gates, const at::Tensor& hx,
                                            const Optional& input_bias,
                                            const Optional& hidden_bias) {
  const auto input = add_bias(input_gates, input_bias);
  const auto hidden = add_bias(hidden_gates, hidden_bias);
  const auto in = input.chunk(3, 1), from = hidden.chunk(3, 1);
  const auto renewed = (in[2] + (in[0] + from[0]).sigmoid() * from[2]).tanh();
  return {renewed + (in[1] + from[1]).sigmoid() * (hx - renewed), at::cat({input, hidden, hx}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(
    const at::Tensor& grad_hy, const at::Tensor& gates, bool has_bias) {
  const auto width = grad_hy.size(1);
  const auto part = gates.split_with_sizes({3 * width, 3 * width, width}, 1);
  const auto [input, hidden, hx, input_bias, hidden_bias] =
      at::_thnn_differentiable_gru_cell_backward(grad_hy, part[0], part[1], part[2], {}, {});
  return {input, hidden, hx, sum_if(has_bias, input), sum_if(has_bias, hidden)};
}

/// What set_data() asks, by which modules change devices: those that LibTorch knows of may.
bool can_become(const at::Tensor& self, const at::Tensor& from) {
  const auto is_dense = [](const at::Tensor& tensor) {
    return (is_fake(tensor) || tensor.is_cpu()) && tensor.layout() == c10::kStrided;
  };
  return is_dense(self) && is_dense(from);
}

/// Those that are not the CPU's.
const std::map<std::string, torch::CppFunction (*)()> kOwn{
    {"aten::empty.memory_format", [] { return torch::CppFunction(&empty); }},
    {"aten::empty_strided", [] { return torch::CppFunction(&empty_strided); }},
    {"aten::resize_", [] { return torch::CppFunction(&resize); }},
    {"aten::set_", [] { return torch::CppFunction(&set_nothing); }},
    {"aten::set_.source_Storage", [] { return torch::CppFunction(&set_whole_storage); }},
    {"aten::set_.source_Storage_storage_offset", [] { return torch::CppFunction(&set_storage); }},
    {"aten::set_.source_Tensor", [] { return torch::CppFunction(&set_tensor); }},
    {"aten::_copy_from", [] { return torch::CppFunction(&copy_from); }},
    {"aten::_copy_from_and_resize", [] { return torch::CppFunction(&copy_from_and_resize); }},
    {"aten::_local_scalar_dense", [] { return torch::CppFunction(&local_scalar); }},
    {"aten::_has_compatible_shallow_copy_type", [] { return torch::CppFunction(&can_become); }},
    {"aten::native_dropout", [] { return torch::CppFunction(&native_dropout); }},
    {"aten::_thnn_fused_lstm_cell", [] { return torch::CppFunction(&lstm_cell); }},
    {"aten::_thnn_fused_lstm_cell_backward_impl",
     [] { return torch::CppFunction(&lstm_cell_backward); }},
    {"aten::_thnn_fused_gru_cell", [] { return torch::CppFunction(&gru_cell); }},
    {"aten::_thnn_fused_gru_cell_backward", [] { return torch::CppFunction(&gru_cell_backward); }},
};

torch::CppFunction on_host() { return torch::CppFunction::makeFromBoxedFunction<&run_on_host>(); }

/// Operators that the CPU has kernels for, and those that ask what device they are on. The others
/// are made of these.
std::set<std::string> hosted() {
  std::set<std::string> names{"aten::convolution", "aten::convolution_backward"};
  const auto all =
      c10::Dispatcher::singleton().getRegistrationsForDispatchKey(c10::DispatchKey::CPU);
  for (const auto& name : all) {
    if (name.name.starts_with("aten::")) names.insert(c10::toString(name));
  }
  for (const auto& own : kOwn) names.erase(own.first);
  return names;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const auto& [name, make] : kOwn) m.impl(name.c_str(), make());
  for (const auto& name : hosted()) m.impl(name.c_str(), on_host());
}

/// Lazy conjugation and negation are resolved by copying, which would ask for that again.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

/// Operators of others.
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(on_host()); }

}  // namespace

void link_kernels() noexcept {}

}  // namespace smp::support::fake
