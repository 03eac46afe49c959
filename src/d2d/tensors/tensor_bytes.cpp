// d2d/tensors/tensor_bytes.cpp: one question to the two kinds of allocators.
#include "d2d/tensors/tensor_bytes.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>

#include "d2d/tensors/tensor_count.h"

namespace smp::d2d {
namespace {

/// The allocator of a device that is no CPU, or nullptr if it counts nothing, or not yet.
c10::DeviceAllocator* counting_allocator(c10::Device device) {
  try {
    auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
    return allocator != nullptr && allocator->initialized() ? allocator : nullptr;
  } catch (const c10::Error&) {  // a device that LibTorch was given no allocator of
    return nullptr;
  }
}

c10::DeviceIndex index_of(c10::Device device) {
  return std::max<c10::DeviceIndex>(device.index(), 0);
}

}  // namespace

std::optional<TensorBytes> tensor_bytes(c10::Device device) {
  if (device.is_cpu()) {
    if (!TensorCount::installed()) return std::nullopt;
    return TensorBytes{TensorCount::live(), TensorCount::most()};
  }
  auto* const allocator = counting_allocator(device);
  if (allocator == nullptr) return std::nullopt;
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto bytes = allocator->getDeviceStats(index_of(device)).allocated_bytes[kAll];
  return TensorBytes{bytes.current, bytes.peak};
}

void forget_most_tensor_bytes(c10::Device device) {
  if (device.is_cpu()) return TensorCount::forget_most();
  if (auto* const allocator = counting_allocator(device)) {
    allocator->resetPeakStats(index_of(device));
  }
}

}  // namespace smp::d2d
