// A Sequential is cloned to a device with all that it holds.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "smp/nn.h"
#include "support/fake_device.h"

namespace smp {
namespace device_sequential_test {

/// Also what hides its types, and what lies in another one.
TEST(SequentialOnDevice, IsClonedWithAllItsModules) {
  const nn::Sequential all(nn::Linear(2, 3), torch::nn::AnyModule(torch::nn::Linear(3, 4)),
                           nn::Sequential(nn::Linear(4, 1)));
  const auto copy = all->clone(support::fake_device());
  ASSERT_EQ(copy->parameters().size(), 6u);
  for (const auto& parameter : copy->parameters()) {
    EXPECT_EQ(parameter.device(), support::fake_device());
  }
  for (const auto& parameter : all->parameters()) EXPECT_TRUE(parameter.is_cpu());
  const auto x = torch::randn({5, 2});
  const auto result =
      std::dynamic_pointer_cast<nn::SequentialImpl>(copy)->forward(x.to(support::fake_device()));
  EXPECT_TRUE(torch::equal(result.to(torch::kCPU), nn::Sequential(all)->forward(x)));
}

}  // namespace device_sequential_test
}  // namespace smp
