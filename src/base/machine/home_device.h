// base/machine/home_device.h: the device on which this process computes. Global, as LibTorch's
// current device and its generators are.
#pragma once

#include <c10/core/Device.h>

namespace smp::base {

/// The home device of this process, on which it computes; the CPU until it is set. Threads: set it
/// while no other thread reads it.
c10::Device home_device() noexcept;
void set_home_device(c10::Device device) noexcept;

/// Returns the device for tensors of `type` that came from elsewhere: the home device if it is of
/// that type, else the calling thread's current device. Unlike that one, the home device does not
/// change with a guard that a suspended fiber holds. @param type  one that LibTorch has here
c10::Device home_of(c10::DeviceType type);

}  // namespace smp::base
