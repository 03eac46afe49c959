// base/memory/device_memory.cpp: LibTorch's allocator of the device is asked.
#include "base/memory/device_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <exception>

namespace smp::base {

std::int64_t device_memory(c10::Device device) noexcept try {
  if (device.is_cpu()) return 0;
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr) return 0;
  return static_cast<std::int64_t>(allocator->getMemoryInfo(device.index()).second);
} catch (const std::exception&) {  // not every allocator knows
  return 0;
}

}  // namespace smp::base
