// base/machine/home_device_test.cpp: where tensors belong that came from elsewhere.
#include "base/machine/home_device.h"

#include <gtest/gtest.h>

namespace smp::base {
namespace {

TEST(HomeDevice, IsTheCpuUntilItIsSet) {
  EXPECT_EQ(home_device(), c10::Device(c10::DeviceType::CPU));
  EXPECT_EQ(home_of(c10::DeviceType::CPU), c10::Device(c10::DeviceType::CPU));
}

/// No device is asked: this LibTorch need not have it.
TEST(HomeDevice, IsWhereTensorsOfItsTypeBelong) {
  const c10::Device second(c10::DeviceType::CUDA, 1);
  set_home_device(second);
  EXPECT_EQ(home_device(), second);
  EXPECT_EQ(home_of(c10::DeviceType::CUDA), second);
  EXPECT_EQ(home_of(c10::DeviceType::CPU), c10::Device(c10::DeviceType::CPU));
  set_home_device(c10::DeviceType::CPU);
}

}  // namespace
}  // namespace smp::base
