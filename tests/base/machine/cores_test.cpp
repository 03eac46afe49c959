// Which cores processes may use, alone and together.
#include "base/machine/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <thread>

namespace smp::base {
namespace cores_test {

TEST(Cores, AreThoseOfAnySet) {
  EXPECT_EQ(num_cores({"1111"}), 4);
  EXPECT_EQ(num_cores({"0001", "01", "0001"}), 2) << "each process is bound to one";
  EXPECT_EQ(num_cores({"00001111", "00001111"}), 4) << "a container has half of the machine";
  EXPECT_EQ(num_cores({}), 1);
}

TEST(Cores, AreThoseOfTheMachineIfNothingIsKnown) {
  EXPECT_EQ(num_cores({"1", ""}),
            std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
}

TEST(Cores, FollowTheMaskOfTheThread) {
  const auto all = own_cores();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all.back(), '1');
  const auto last = all.size() - 1;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(own_cores(), std::string(last, '0') + '1');
    EXPECT_EQ(num_cores({own_cores()}), 1);
  }).join();
  EXPECT_EQ(own_cores(), all);
}

}  // namespace cores_test
}  // namespace smp::base
