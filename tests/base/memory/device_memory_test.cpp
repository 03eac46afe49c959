// base/memory/device_memory_test.cpp: nobody is hurt by a device that does not tell.
#include "base/memory/device_memory.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

namespace smp::base {
namespace {

TEST(DeviceMemory, OfACpuIsTheMachinesBusiness) {
  EXPECT_EQ(device_memory(c10::DeviceType::CPU), 0);
}

TEST(DeviceMemory, IsThatOfTheFirstGpuWhereThereIsOne) {
  const c10::Device first(c10::DeviceType::CUDA, 0);
  const bool known = c10::impl::hasDeviceGuardImpl(first.type());
  const bool there = known && c10::impl::VirtualGuardImpl(first.type()).deviceCount() > 0;
  if (there) {
    EXPECT_GT(device_memory(first), std::int64_t{1} << 30);
  } else {
    EXPECT_EQ(device_memory(first), 0);
  }
}

}  // namespace
}  // namespace smp::base
