// What is seen of ranks that do not answer.
#include "server/ends/silent_rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <cstdio>
#include <cstdlib>
#include <functional>

#include "alive/pulse.h"

namespace smp::server {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// In a child, which is rank 0: another process is rank 2, and did what `live` says.
[[noreturn]] void beside_rank_2(const std::function<void(base::Pulse&)>& live,
                                const std::function<void(int process)>& look) {
  base::PulseBoard board(base::SharedMemory::make(base::PulseBoard::bytes_for(3)).value());
  auto& other = board.of(2);
  base::PulseBoard::join(std::move(board), 0);
  const auto process = ::fork();
  if (process == 0) {
    for (;;) ::pause();
  }
  other.module = base::Pulse::kNothing;
  other.process = process;
  live(other);
  look(process);
  ::kill(process, SIGKILL);
  std::_Exit(testing::Test::HasFailure() ? 1 : 0);
}

void ran_the_body(base::Pulse& pulse) {
  pulse.module = kBody.value;
  pulse.microbatch = 3;
  pulse.backward = true;
  pulse.running = true;
  pulse.last_beat = 2 * base::kSecond;
}

void stop(int process) {
  ::kill(process, SIGSTOP);
  ::waitpid(process, nullptr, WUNTRACED);
}

class SilentRankDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  static constexpr base::Nanoseconds kNow = 5 * base::kSecond + base::kSecond / 2;
};

TEST_F(SilentRankDeathTest, AStoppedOneIsNamedWithWhatItDid) {
  EXPECT_EXIT(beside_rank_2(ran_the_body,
                            [](int process) {
                              const ModuleTable modules;
                              EXPECT_TRUE(stopped_ranks(modules, kNow).empty());
                              stop(process);
                              const auto seen = look_at(GlobalRank(2), modules, kNow);
                              EXPECT_TRUE(seen.stopped);
                              EXPECT_THAT(seen.text,
                                          AllOf(HasSubstr("rank 2 is stopped"),
                                                HasSubstr("module <body> (backward), microba"),
                                                HasSubstr("microbatch 3"),
                                                HasSubstr("seen of it for 3.5 s"),
                                                HasSubstr("kill -CONT")));
                              EXPECT_EQ(stopped_ranks(modules, kNow).size(), 1u);
                            }),
              testing::ExitedWithCode(0), "");
}

TEST_F(SilentRankDeathTest, OneThatRunsIsSaidToComputeOrWait) {
  EXPECT_EXIT(beside_rank_2([](base::Pulse&) {},
                            [](int) {
                              const auto seen = look_at(GlobalRank(2), ModuleTable(), kNow);
                              EXPECT_FALSE(seen.stopped);
                              EXPECT_THAT(seen.text, AllOf(HasSubstr("rank 2 does not answer"),
                                                           HasSubstr("it has run no module yet")));
                            }),
              testing::ExitedWithCode(0), "");
}

TEST_F(SilentRankDeathTest, OfOneThatComesBackOnlyTheAnswerIsMissing) {
  EXPECT_EXIT(beside_rank_2([](base::Pulse& pulse) { pulse.last_beat = kNow - base::kSecond; },
                            [](int) {
                              const auto seen = look_at(GlobalRank(2), ModuleTable(), kNow);
                              EXPECT_FALSE(seen.stopped);
                              EXPECT_THAT(seen.text, AllOf(HasSubstr("rank 2 works, since"),
                                                           HasSubstr("connection to it is cut")));
                              const auto later = kNow + base::kSecond;
                              EXPECT_THAT(look_at(GlobalRank(2), ModuleTable(), later).text,
                                          HasSubstr("rank 2 does not answer"));
                            }),
              testing::ExitedWithCode(0), "");
}

TEST(SilentRank, OfAnotherMachineNothingIsKnown) {
  const auto seen = look_at(GlobalRank(7), ModuleTable(), 0);
  EXPECT_FALSE(seen.stopped);
  EXPECT_THAT(seen.text, AllOf(HasSubstr("rank 7 does not answer"), Not(HasSubstr("process"))));
}

}  // namespace
}  // namespace smp::server
