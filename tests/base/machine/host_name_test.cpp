// tests/base/machine/host_name_test.cpp: the name that the kernel has.
#include "base/machine/host_name.h"

#include <gtest/gtest.h>

#include <fstream>

namespace smp::base {
namespace {

TEST(HostName, IsTheOneOfTheKernel) {
  std::ifstream file("/proc/sys/kernel/hostname");
  std::string name;
  ASSERT_TRUE(std::getline(file, name));
  EXPECT_EQ(host_name(), name);
}

}  // namespace
}  // namespace smp::base
