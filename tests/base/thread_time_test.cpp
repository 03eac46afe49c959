// Processor time, with few questions to the kernel.
#include "base/thread_time.h"

#include <gtest/gtest.h>

#include <thread>

namespace smp::base {
namespace {

/// Until the thread has had its core for so long.
void work_for(Nanoseconds duration) {
  for (const auto end = thread_cpu_time() + duration; thread_cpu_time() < end;) {
  }
}

TEST(ThreadTime, IsTheKernelsWhereNothingIsTrusted) {
  ThreadTime time;
  work_for(kMillisecond);
  const auto before = thread_cpu_time();
  const auto told = time.at(0);
  EXPECT_GE(told, before);
  EXPECT_LE(told, thread_cpu_time());
  work_for(kMillisecond);
  EXPECT_GE(time.at(0), told + kMillisecond) << "though no time passes on the clock";
}

TEST(ThreadTime, GoesOnWithTheClockWhileItIsTrusted) {
  ThreadTime time(20 * kMicrosecond);
  const auto first = time.at(1000);
  work_for(kMillisecond);
  EXPECT_EQ(time.at(1000), first);
  EXPECT_EQ(time.at(1000 + 19 * kMicrosecond), first + 19 * kMicrosecond);
  EXPECT_GE(time.at(1000 + 20 * kMicrosecond), first + kMillisecond) << "the kernel is asked again";
}

TEST(ThreadTime, OfAThreadThatSleptIsTheKernels) {
  ThreadTime time(20 * kMicrosecond);
  const SteadyClock clock;
  const auto first = time.at(clock.now());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_LT(time.at(clock.now()) - first, 10 * kMillisecond);
}

}  // namespace
}  // namespace smp::base
