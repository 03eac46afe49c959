// What a process says when it is asked to end.
#include "alive/farewell.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>

namespace smp::base {
namespace {

void be_asked_to_end(int signal) {
  Farewell farewell("smp: ", " steps are in runs/a");
  farewell.set_count(41);
  std::raise(signal);
}

TEST(FarewellDeathTest, IsSaidWithTheCountAndThenTheSignalEndsTheProcess) {
  EXPECT_EXIT(be_asked_to_end(SIGTERM), testing::KilledBySignal(SIGTERM),
              "smp: 41 steps are in runs/a\n");
  EXPECT_EXIT(be_asked_to_end(SIGINT), testing::KilledBySignal(SIGINT),
              "smp: 41 steps are in runs/a\n");
}

TEST(FarewellDeathTest, IsOverWithItsObject) {
  const auto end = [] {
    { Farewell farewell("smp: ", " steps"); }
    std::raise(SIGTERM);
  };
  EXPECT_EXIT(end(), testing::KilledBySignal(SIGTERM), "^$");
}

TEST(FarewellDeathTest, LeavesAProgramItsOwnHandlers) {
  const auto end = [] {
    std::signal(SIGTERM, [](int) { std::_Exit(7); });
    std::signal(SIGINT, SIG_IGN);
    Farewell farewell("smp: ", " steps");
    std::raise(SIGINT);
    std::raise(SIGTERM);
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(7), "^$");
}

}  // namespace
}  // namespace smp::base
