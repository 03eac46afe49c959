// LibTorch's modes are captured, applied for a while, and as they were afterwards.
#include "server/protocol/execution_modes.h"

#include <gtest/gtest.h>

namespace smp::server {
namespace {

TEST(ExecutionModes, AreThoseOfTheThread) {
  EXPECT_TRUE(ExecutionModes::capture().grad);
  const at::NoGradGuard no_grad;
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  const auto modes = ExecutionModes::capture();
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_FALSE(modes.grad);
  EXPECT_TRUE(modes.autocast[0].enabled);
  EXPECT_EQ(modes.autocast[0].dtype, at::kHalf);
  EXPECT_FALSE(modes.autocast[1].enabled);
  EXPECT_FALSE(modes.without_autocast().autocast[0].enabled);
  EXPECT_FALSE(modes.without_autocast().grad);
}

TEST(ExecutionModes, AreAppliedOnEveryDeviceAndThenAsTheyWere) {
  const auto before = ExecutionModes::capture();
  ExecutionModes wanted;
  wanted.grad = false;
  for (auto& device : wanted.autocast) device = {true, at::kBFloat16};
  {
    const ModesScope scope(wanted);
    EXPECT_EQ(ExecutionModes::capture(), wanted);
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    {
      const ModesScope inner(ExecutionModes{});
      EXPECT_EQ(ExecutionModes::capture(), ExecutionModes{});
    }
    EXPECT_EQ(ExecutionModes::capture(), wanted);
  }
  EXPECT_EQ(ExecutionModes::capture(), before);
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

}  // namespace
}  // namespace smp::server
