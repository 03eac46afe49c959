// tests/support/fake_device.cpp: memory, random numbers, and what LibTorch asks of any device.
#include "support/fake_device.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "support/fake_kernels.h"

namespace smp::support {

__attribute__((weak)) const char* fake_device_name() noexcept { return "fake"; }

namespace fake {

Counters& counters() noexcept {
  static Counters all;
  return all;
}

void require_own_process() {
  static const pid_t owner = ::getpid();
  TORCH_CHECK(::getpid() == owner, "the fake device cannot be used in the child of a fork()");
}

FakeMemory& memory() {
  static auto* const only = new FakeMemory;
  return *only;
}

namespace {

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const block = memory().allocate(bytes);
    return {block, block, &free_block, fake_device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    if (bytes > 0) std::memcpy(memory().real(to), memory().real(from), bytes);
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[kAll].current = static_cast<std::int64_t>(memory().live());
    stats.allocated_bytes[kAll].peak = static_cast<std::int64_t>(memory().most());
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override { memory().forget_most(); }

 private:
  static void free_block(void* block) { memory().free(block); }
};

}  // namespace

c10::Allocator& allocator() {
  static auto* const only = new Allocator;
  return *only;
}

void resize_storage(const c10::Storage& storage, std::size_t bytes) {
  TORCH_CHECK(storage.resizable(), "a storage of the fake device that cannot be resized");
  auto data = allocator().allocate(bytes);
  allocator().copy_data(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(bytes);
}

void grow_storage(const c10::Storage& storage, std::size_t bytes) {
  if (bytes > storage.nbytes()) resize_storage(storage, bytes);
}

namespace {

/// The CPU's, by another name: its kernels refuse generators of other devices.
class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(at::Generator cpu)
      : GeneratorImpl(fake_device(), kKeys), cpu_(std::move(cpu)) {}

  void set_current_seed(std::uint64_t seed) override {
    require_own_process();  // CUDA's asks whether a stream is being captured
    cpu_.set_current_seed(seed);
  }
  std::uint64_t current_seed() const override { return cpu_.current_seed(); }
  std::uint64_t seed() override { return cpu_.seed(); }
  void set_offset(std::uint64_t offset) override { cpu_.set_offset(offset); }
  std::uint64_t get_offset() const override { return cpu_.get_offset(); }
  void set_state(const c10::TensorImpl& state) override {
    cpu_.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return cpu_.unsafeGetGeneratorImpl()->get_state();
  }
  const at::Generator& cpu() const noexcept { return cpu_; }

 private:
  Generator* clone_impl() const override { return new Generator(cpu_.clone()); }

  at::Generator cpu_;
};

at::Generator new_generator() {
  return at::make_generator<Generator>(at::detail::createCPUGenerator());
}

}  // namespace

at::Generator& default_generator() {
  static auto* const only = new at::Generator(new_generator());
  return *only;
}

at::Generator cpu_generator(const at::Generator& generator) {
  const auto* const own = dynamic_cast<const Generator*>(generator.unsafeGetGeneratorImpl());
  TORCH_CHECK(own != nullptr, "expected a generator of the fake device, got one of ",
              generator.device());
  return own->cpu();
}

namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::Device getDeviceFromPtr(void*) const override { return fake_device(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return default_generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return new_generator(); }
  /// For copies to the host that need not be waited for.
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

/// One device and one stream, on which everything has happened already.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<kType> {
  c10::Device exchangeDevice(c10::Device) const override { return fake_device(); }
  c10::Device getDevice() const override { return fake_device(); }
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
  static c10::Stream stream() noexcept { return c10::Stream(c10::Stream::DEFAULT, fake_device()); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

const bool registered = [] {
  c10::register_privateuse1_backend(fake_device_name());
  c10::SetAllocator(kType, &allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  link_kernels();
  return true;
}();

}  // namespace
}  // namespace fake

c10::Device fake_device() noexcept { return {fake::kType, 0}; }

std::int64_t fake_live_bytes() { return static_cast<std::int64_t>(fake::memory().live()); }

const void* host_view(const void* device_address) noexcept {
  return fake::memory().real(device_address);
}

FakeDeviceCounters fake_counters() noexcept {
  return {fake::counters().to_device, fake::counters().to_host, fake::counters().kernels};
}

}  // namespace smp::support
