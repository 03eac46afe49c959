// base/memory/device_memory.h: how much memory an accelerator has.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace smp::base {

/// Returns the bytes of memory of a device, in use or not; 0 if it is a CPU (see
/// base/memory/machine_memory.h) or its allocator does not tell. Threads: any.
std::int64_t device_memory(c10::Device device) noexcept;

}  // namespace smp::base
