// tests/support/fake_kernels.h: what the fake device's kernels need of the device; for its own
// sources (support/fake_device.h is for tests).
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "support/fake_memory.h"

namespace smp::support::fake {

inline constexpr auto kType = c10::DeviceType::PrivateUse1;
inline constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

struct Counters {
  std::atomic<std::int64_t> to_device{0}, to_host{0}, kernels{0};
};
Counters& counters() noexcept;

/// As CUDA has it. @throws c10::Error  this is the child of a fork().
void require_own_process();

/// Never destroyed: tensors of static duration are freed after everything else.
FakeMemory& memory();
c10::Allocator& allocator();
/// With the elements that it had, as far as they fit.
void resize_storage(const c10::Storage& storage, std::size_t bytes);
void grow_storage(const c10::Storage& storage, std::size_t bytes);

/// Kernels ask for it anew each time, so that another may be put in its place.
at::Generator& default_generator();
/// The CPU's that it draws from. @throws c10::Error  it is no generator of this device.
at::Generator cpu_generator(const at::Generator& generator);

/// A program that has the device has its kernels: static objects register them.
void link_kernels() noexcept;

}  // namespace smp::support::fake
