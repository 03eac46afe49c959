// tests/support/fake_device.h: an accelerator for machines without one: LibTorch's device "fake:0",
// whose memory the host cannot touch.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace smp::support {

/// LibTorch's PrivateUse1, named "fake". A tensor's data_ptr() is an address that nobody may read
/// or write: who takes it for host memory dies there and then. Only the device's own kernels know
/// where the elements are; they are those of the CPU, so that results are the CPU's to the bit, but
/// for recurrent layers and scaled_dot_product_attention(), which LibTorch takes apart otherwise.
/// As on other accelerators, operators refuse CPU tensors other than of zero dimensions, the
/// device has a default generator of its own, and autograd runs its backward passes on a thread of
/// the device's. There are no streams to wait for: what is called has happened.
///
/// A program that calls this has the device from its start, used or not, since autograd counts the
/// devices once, at the first backward pass. So at::manual_seed() seeds its generator too.
/// Threads: any. The child of a fork() cannot use it.
c10::Device fake_device() noexcept;

/// Returns the name that LibTorch knows the device by: "fake". A program of tests that defines this
/// function itself gives it another one.
const char* fake_device_name() noexcept;

/// Bytes of the device's memory that are taken, each block rounded up to 512.
std::int64_t fake_live_bytes();

/// Where the host may read what the device has at `device_address`, for tests that look behind the
/// scenes; other addresses, and nullptr, stay what they are.
const void* host_view(const void* device_address) noexcept;

/// Since the start of the program.
struct FakeDeviceCounters {
  std::int64_t to_device = 0;  ///< copies from the host, by tensor
  std::int64_t to_host = 0;    ///< copies to it, those of single elements (item()) included
  std::int64_t kernels = 0;    ///< all else that has been computed on it
};
FakeDeviceCounters fake_counters() noexcept;

}  // namespace smp::support
