// On which socket a process is taken to be, by what a made-up sysfs says.
#include "base/machine/cpu_socket.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/check.h"

namespace smp::base {
namespace cpu_socket_test {

class CpuSocket : public testing::Test {
 protected:
  void SetUp() override {
    cpu_set_t allowed;
    ASSERT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) cpus_.push_back(cpu);
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void put(int cpu, const std::string& socket) const {
    const auto topology = concat(folder_, "/cpu", cpu, "/topology");
    std::filesystem::create_directories(topology);
    std::ofstream(topology + "/physical_package_id") << socket << '\n';
  }

  const std::string folder_ = concat(testing::TempDir(), "smp_cpu_socket_", ::getpid());
  std::vector<int> cpus_;
};

TEST_F(CpuSocket, IsThatOfAllProcessors) {
  for (const int cpu : cpus_) put(cpu, "3");
  put(cpus_.back() + 1, "4");  // not ours
  EXPECT_EQ(bound_socket(folder_), 3);
}

TEST_F(CpuSocket, IsNoneIfTheyAreOnSeveral) {
  if (cpus_.size() < 2) GTEST_SKIP() << "one processor";
  for (const int cpu : cpus_) put(cpu, "0");
  put(cpus_.back(), "1");
  EXPECT_EQ(bound_socket(folder_), -1);
}

TEST_F(CpuSocket, IsNoneIfTheSystemDoesNotSay) {
  EXPECT_EQ(bound_socket(folder_), -1);
  for (const int cpu : cpus_) put(cpu, "unknown");
  EXPECT_EQ(bound_socket(folder_), -1);
}

}  // namespace cpu_socket_test
}  // namespace smp::base
