// base/machine/home_device.cpp: see the header.
#include "base/machine/home_device.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace smp::base {
namespace {

c10::Device& home() noexcept {
  static c10::Device device(c10::DeviceType::CPU);
  return device;
}

}  // namespace

c10::Device home_device() noexcept { return home(); }
void set_home_device(c10::Device device) noexcept { home() = device; }

c10::Device home_of(c10::DeviceType type) {
  if (type == c10::DeviceType::CPU) return c10::Device(type);
  return home().type() == type ? home() : c10::impl::VirtualGuardImpl(type).getDevice();
}

}  // namespace smp::base
