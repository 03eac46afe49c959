// The memory of a machine and of cgroups, from files like the kernel's.
#include "base/memory/machine_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace smp::base {
namespace {

class MachineMemory : public testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::path(testing::TempDir()) /
            testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
    write("proc/meminfo", "MemTotal:       24684084 kB\nMemFree:  1 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::int64_t found() const { return machine_memory(root_.string()); }

  std::filesystem::path root_;
};

constexpr std::int64_t kAll = std::int64_t{24684084} * 1024;

TEST_F(MachineMemory, IsThatOfTheMachineWithoutLimits) {
  EXPECT_EQ(found(), kAll);
  write("proc/self/cgroup", "0::/user/session\n");
  write("sys/fs/cgroup/user/session/memory.max", "max\n");
  EXPECT_EQ(found(), kAll);
}

TEST_F(MachineMemory, IsTheSmallestLimitAboveTheProcess) {
  write("proc/self/cgroup", "0::/user/session\n");
  write("sys/fs/cgroup/user/session/memory.max", "8000000000\n");
  EXPECT_EQ(found(), 8000000000);
  write("sys/fs/cgroup/user/memory.max", "4000000000\n");
  EXPECT_EQ(found(), 4000000000);
}

TEST_F(MachineMemory, OfAContainerIsTheLimitOfItsTopmostGroup) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "2000000000\n");
  EXPECT_EQ(found(), 2000000000);
}

TEST_F(MachineMemory, KnowsTheFormerKindOfCgroups) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n");
  write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "3000000000\n");
  EXPECT_EQ(found(), 3000000000);
}

TEST_F(MachineMemory, MayBeUnknown) {
  std::filesystem::remove_all(root_);
  EXPECT_EQ(found(), 0);
}

}  // namespace
}  // namespace smp::base
