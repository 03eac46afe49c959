// Who is named, and when the process ends: the thread that looks on while a step runs.
#include "alive/watchdog.h"

#include <gmock/gmock.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "alive/heartbeat.h"
#include "alive/running_call.h"
#include "alive/transport_call.h"

namespace smp::server {
namespace watchdog_test {

using testing::HasSubstr;

void pass(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// What is written to stderr meanwhile.
template <class Run>
std::string said(const Run& run) {
  testing::internal::CaptureStderr();
  run();
  return testing::internal::GetCapturedStderr();
}

TEST(WatchdogTest, NamesWhatKeepsTheThreadOnce) {
  const auto text = said([] {
    const Watchdog::Session session({0.1, 0, 1}, nullptr);
    const Watchdog::Step step;
    running_call.set("encoder.block.3", 2, 3, 5, true);
    pass(0.8);
    running_call.clear();
  });
  EXPECT_THAT(text, HasSubstr("rank 2, module encoder.block.3 (backward), microbatch 5: has kept"));
  EXPECT_THAT(text, HasSubstr("mutex"));
  EXPECT_EQ(text.find("has kept"), text.rfind("has kept"));
}

TEST(WatchdogTest, SaysNothingOfAThreadThatComesBack) {
  EXPECT_EQ(said([] {
              const Watchdog::Session session({1, 1, 0.1}, nullptr);
              const Watchdog::Step step;
              for (int i = 0; i < 150; ++i) {
                base::beat();
                pass(0.01);
              }
            }),
            "");
}

TEST(WatchdogTest, SaysNothingOutsideOfSteps) {
  EXPECT_EQ(said([] {
              const Watchdog::Session session({0.05, 0.05, 0.05}, nullptr);
              pass(0.5);
            }),
            "");
}

TEST(WatchdogTest, SpareProgramsThatRecover) {
  EXPECT_EQ(said([] {
              const Watchdog::Session session({0, 0.2, 1.5}, nullptr);
              Watchdog::end_soon();
              pass(0.1);
              Watchdog::calm_down();
              pass(1.8);
            }),
            "");
}

TEST(WatchdogTest, ForgetsASessionThatEnded) {
  {
    const Watchdog::Session session({0, 0.2, 0.3}, nullptr);
    Watchdog::end_soon();
  }
  const Watchdog::Session session({0, 0.2, 0.3}, nullptr);
  EXPECT_EQ(said([] { pass(0.6); }), "");
}

// Such calls wait for nothing: there is no reason to go on waiting.
TEST(WatchdogDeathTest, EndsTheProcessIfTheTransportDoesNotComeBack) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const Watchdog::Session session({0.1, 100, 100}, nullptr);
        const Watchdog::Step step;
        const base::TransportCall calling;
        pass(20);
      },
      testing::ExitedWithCode(1), "connection of this rank was cut.*ending the job");
}

TEST(WatchdogTest, OnlyReportsTheTransportIfNothingMayEndTheJob) {
  EXPECT_THAT(said([] {
                const Watchdog::Session session({0.1, 0, 1}, nullptr);
                const Watchdog::Step step;
                const base::TransportCall calling;
                pass(0.5);
              }),
              HasSubstr("has kept"));
}

TEST(WatchdogDeathTest, EndsTheProcessAfterTheGrace) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const Watchdog::Session session({0, 0.1, 0.2}, nullptr);
        const Watchdog::Step step;
        pass(20);
      },
      testing::ExitedWithCode(1), "has not come back.*ending the job");
}

TEST(WatchdogDeathTest, EndsAProgramThatCatchesEverything) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const Watchdog::Session session({0, 0.1, 0.2}, [] { std::_Exit(3); });
        Watchdog::end_soon();
        for (int i = 0; i < 2000; ++i) {
          base::beat();
          pass(0.01);
        }
      },
      testing::ExitedWithCode(3), "waits were ended after abort_seconds");
}

}  // namespace watchdog_test
}  // namespace smp::server
