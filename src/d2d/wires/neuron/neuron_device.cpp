// d2d/wires/neuron/neuron_device.cpp: what LibTorch asks of a device whose tensors only travel.
#include "d2d/wires/neuron/neuron_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/check.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr const char* kName = "neuron";
const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

struct Core {
  NeuronRuntime* runtime = nullptr;
  std::atomic<NeuronPool*> pool = nullptr;  // tensors are freed on any thread
};
Core& core() noexcept {
  static Core only;
  return only;
}

NeuronPool& pool() {
  auto* const here = core().pool.load();
  SMP_REQUIRE_AS(PeerLostError, here != nullptr,
                 "a tensor on the device neuron after its core was released.");
  return *here;
}

// ---- memory ----

/// Counts, so that the bytes of a core's tensors show where those of other devices do.
class NeuronAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const block = pool().allocate(bytes);
    return {block, block, &free_block, NeuronDevice::device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override;

  bool initialized() override { return core().pool.load() != nullptr; }
  void emptyCache(c10::MempoolId_t) override {}                               // there is none
  void recordStream(const c10::DataPtr&, c10::Stream /*stream*/) override {}  // nor a second one
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override;
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override { pool().forget_most_used(); }

 private:
  static void free_block(void* block) {
    if (auto* const here = core().pool.load()) here->free(static_cast<std::byte*>(block));
  }
};

c10::CachingDeviceAllocator::DeviceStats NeuronAllocator::getDeviceStats(c10::DeviceIndex) {
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  c10::CachingDeviceAllocator::DeviceStats stats;
  auto& bytes = stats.allocated_bytes[kAll];
  bytes.current = static_cast<std::int64_t>(pool().used());
  bytes.peak = static_cast<std::int64_t>(pool().most_used());
  return stats;
}

NeuronAllocator& allocator() {
  static auto* const only = new NeuronAllocator;
  return *only;
}

NeuronPlace place_of(const void* start, std::size_t bytes) {
  return pool().require({static_cast<const std::byte*>(start), bytes});
}

void read(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const auto place = place_of(from, bytes);
  auto& runtime = *core().runtime;
  runtime.require_usable("nrt_tensor_read");
  runtime.require(runtime.library().tensor_read(place.tensor, to, place.offset, bytes),
                  "copying a tensor to the host", "nrt_tensor_read", place.core);
}

void write(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const auto place = place_of(to, bytes);
  auto& runtime = *core().runtime;
  runtime.require_usable("nrt_tensor_write");
  runtime.require(runtime.library().tensor_write(place.tensor, from, place.offset, bytes),
                  "copying a tensor from the host", "nrt_tensor_write", place.core);
}

/// Within a core, which is all that the runtime copies within.
void copy_within(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const auto source = place_of(from, bytes), place = place_of(to, bytes);
  auto& runtime = *core().runtime;
  runtime.require_usable("nrt_tensor_copy");
  runtime.require(runtime.library().tensor_copy(source.tensor, source.offset, place.tensor,
                                                place.offset, bytes),
                  "copying a tensor", "nrt_tensor_copy", place.core);
}

void NeuronAllocator::copy_data(void* to, const void* from, std::size_t bytes) const {
  copy_within(to, from, bytes);
}

// ---- operators ----

bool is_here(const at::Tensor& tensor) { return tensor.device().type() == kType; }

/// The bytes from the first element of a tensor to its last one.
std::size_t span_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
}

/// A tensor of the host with the elements of one of the device, each where it is there.
at::Tensor twin_of(const at::Tensor& tensor) {
  at::Tensor twin(
      at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), tensor.scalar_type()));
  read(twin.mutable_data_ptr(), tensor.const_data_ptr(), span_of(tensor));
  twin._set_conj(tensor.is_conj());
  twin._set_neg(tensor.is_neg());
  return twin;
}

bool are_bytes_alike(const at::Tensor& from, const at::Tensor& to) {
  return from.scalar_type() == to.scalar_type() && from.sizes() == to.sizes() &&
         from.is_contiguous() && to.is_contiguous() && from.is_conj() == to.is_conj() &&
         from.is_neg() == to.is_neg();
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool /*non_blocking*/) {
  if (is_here(from) && is_here(to) && are_bytes_alike(from, to)) {
    copy_within(to.mutable_data_ptr(), from.const_data_ptr(), span_of(to));
    return to;
  }
  const auto source = is_here(from) ? twin_of(from) : from;
  if (!is_here(to)) {
    to.copy_(source);
    return to;
  }
  // What lies between the elements of a strided tensor stays.
  const auto twin =
      to.is_contiguous()
          ? at::Tensor(at::detail::empty_strided_cpu(to.sizes(), to.strides(), to.scalar_type()))
          : twin_of(to);
  twin._set_conj(to.is_conj());
  twin._set_neg(to.is_neg());
  twin.copy_(source);
  write(to.mutable_data_ptr(), twin.const_data_ptr(), span_of(to));
  return to;
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &allocator(), kKeys, c10::dtype_or_default(dtype),
                                   format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &allocator(), kKeys,
                                           c10::dtype_or_default(dtype));
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef sizes) {
  return at::native::view(self, sizes);
}
at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                      std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}
at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::native::_reshape_alias(self, sizes, strides);
}
at::Scalar local_scalar(const at::Tensor& self) { return twin_of(self).item(); }

// ---- the device ----

/// One device, on which everything has happened when a call returns.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<kType> {
  c10::Device exchangeDevice(c10::Device) const override { return NeuronDevice::device(); }
  c10::Device getDevice() const override { return NeuronDevice::device(); }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}

 private:
  static c10::Stream stream() noexcept {
    return c10::Stream(c10::Stream::DEFAULT, NeuronDevice::device());
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return core().pool.load() != nullptr; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return isAvailable(); }
  /// None that draws random numbers: LibTorch would seed its generator.
  c10::DeviceIndex deviceCount() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::Device getDeviceFromPtr(void*) const override { return NeuronDevice::device(); }
};

/// Once, and for as long as the process lives: LibTorch takes nothing of it back.
void register_device() {
  static const bool done = [] {
    c10::register_privateuse1_backend(kName);
    static const c10::impl::DeviceGuardImplRegistrar guard(kType, new Guard);
    c10::SetAllocator(kType, &allocator());
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    auto& operators = *new torch::Library(torch::Library::IMPL, "aten",
                                          c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    operators.impl("empty.memory_format", &empty);
    operators.impl("empty_strided", &empty_strided);
    operators.impl("view", &view);
    operators.impl("as_strided", &as_strided);
    operators.impl("_reshape_alias", &reshape_alias);
    operators.impl("_copy_from", &copy_from);
    operators.impl("_local_scalar_dense", &local_scalar);
    return true;
  }();
  static_cast<void>(done);
}

/// Whether register_device() ran.
bool& is_ours() noexcept {
  static bool ours = false;
  return ours;
}

}  // namespace

NeuronDevice::NeuronDevice(NeuronRuntime& runtime, NeuronPool& pool) {
  SMP_REQUIRE(core().pool.load() == nullptr, "rank ", runtime.rank(),
              ": LibTorch's device neuron has memory already; a process has one core for tensors.");
  const bool taken = !is_ours() && (c10::is_privateuse1_backend_registered() ||
                                    c10::impl::hasDeviceGuardImpl(kType));
  SMP_REQUIRE(
      !taken, "rank ", runtime.rank(), ": LibTorch's private-use device is taken (\"",
      c10::get_privateuse1_backend(),
      "\"), so no tensors can be made on Neuron memory here; where that is Neuron's own "
      "framework, its storages are to be adopted (smp::NeuronStorages, smp/program/neuron.h).");
  register_device();
  is_ours() = true;
  core().runtime = &runtime;
  core().pool = &pool;
}

NeuronDevice::~NeuronDevice() {
  core().pool = nullptr;
  core().runtime = nullptr;
}

}  // namespace smp::d2d
