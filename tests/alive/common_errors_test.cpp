// Who prints an error that several ranks throw, and what if that one does not.
#include "alive/common_errors.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>

#include "alive/pulse.h"
#include "support/gone_process.h"

namespace smp::server {
namespace {

constexpr const char* kText = "the flag is wrong";

/// In a child, which is rank 1 of two: never left again.
[[noreturn]] void as_rank_1(const std::function<void(base::Pulse& other)>& run) {
  auto memory = base::SharedMemory::make(base::PulseBoard::bytes_for(2));
  base::PulseBoard board(std::move(memory).value());
  auto& other = board.of(0);
  base::PulseBoard::join(std::move(board), 1);
  run(other);
  std::_Exit(0);
}

class CommonErrorsDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(CommonErrorsDeathTest, WhatIsThisRanksIsPrintedOnceAndNoted) {
  EXPECT_EXIT(as_rank_1([](base::Pulse&) {
                leave_to_another_rank(kText, GlobalRank(1));
                say_once(kText);
                if (!base::own_pulse().spoke) std::_Exit(1);
              }),
              testing::ExitedWithCode(0), "^smp: the flag is wrong\n$");
}

TEST_F(CommonErrorsDeathTest, WhatAnotherRankSaysIsAwaitedHoweverLateItComes) {
  EXPECT_EXIT(as_rank_1([](base::Pulse& other) {
                other.process = ::getpid();
                leave_to_another_rank(kText, GlobalRank(0));
                const auto start = std::chrono::steady_clock::now();
                std::thread([&other] {
                  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
                  other.spoke = true;
                }).detach();
                say_once(std::string("rank 1: ") + kText);
                const auto waited = std::chrono::steady_clock::now() - start;
                std::_Exit(waited > std::chrono::milliseconds(1400) ? 0 : 1);
              }),
              testing::ExitedWithCode(0), "^$");
}

TEST_F(CommonErrorsDeathTest, OfALostPeerItIsSaidThatItIsGoneAndNothingElse) {
  EXPECT_EXIT(as_rank_1([](base::Pulse& other) {
                other.process = process_that_is_gone();
                other.named = false;
                other.spoke = false;
                say_once("reading 8 bytes of rank 0 failed", true);
                std::_Exit(base::own_pulse().spoke ? 0 : 1);
              }),
              testing::ExitedWithCode(0), "^smp: rank 0 is gone: [^\n]*\n$");
}

TEST_F(CommonErrorsDeathTest, OfALostPeerThatLivesTheErrorItselfIsPrinted) {
  EXPECT_EXIT(as_rank_1([](base::Pulse& other) {
                other.process = ::getpid();
                say_once("rank 1: reading 8 bytes of rank 0 failed", true);
              }),
              testing::ExitedWithCode(0), "^smp: rank 1: reading 8 bytes of rank 0 failed\n$");
}

TEST_F(CommonErrorsDeathTest, WhatTheRanksKnowIsSaidAtOnce) {
  EXPECT_EXIT(as_rank_1([](base::Pulse& other) {
                other.process = process_that_is_gone();
                leave_to_another_rank(kText, GlobalRank(1));
                say_once(kText, true);
              }),
              testing::ExitedWithCode(0), "^smp: the flag is wrong\n$");
}

TEST_F(CommonErrorsDeathTest, WhatSeveralRanksEndByIsSaidByTheFirst) {
  const auto end_two_ranks = [] {
    auto memory = base::SharedMemory::make(base::PulseBoard::bytes_for(2));
    base::PulseBoard board(std::move(memory).value());
    const auto rank_0 = ::fork();
    base::PulseBoard::join(std::move(board), rank_0 == 0 ? 0 : 1);
    if (rank_0 != 0) ::waitpid(rank_0, nullptr, 0);
    say_once("there are 6 ranks");
    say_once(rank_0 == 0 ? "of rank 0 alone" : "of rank 1 alone");
    std::_Exit(0);
  };
  EXPECT_EXIT(end_two_ranks(), testing::ExitedWithCode(0),
              "^smp: rank 0: there are 6 ranks\nsmp: rank 0: of rank 0 alone\n"
              "smp: rank 1: of rank 1 alone\n$");
}

TEST_F(CommonErrorsDeathTest, ErrorsOfItsOwnAreSaidBesideARankThatIsGone) {
  EXPECT_EXIT(as_rank_1([](base::Pulse& other) {
                other.process = process_that_is_gone();
                say_once("kaboom");
              }),
              testing::ExitedWithCode(0), "^smp: rank 1: kaboom\n$");
}

TEST_F(CommonErrorsDeathTest, WhoWaitsForThisRankHearsThatAnotherHasSaidIt) {
  EXPECT_EXIT(as_rank_1([](base::Pulse& other) {
                other.process = ::getpid();
                other.spoke = true;
                leave_to_another_rank(kText, GlobalRank(0));
                say_once(kText);
                std::_Exit(base::own_pulse().spoke ? 0 : 1);
              }),
              testing::ExitedWithCode(0), "^$");
}

TEST_F(CommonErrorsDeathTest, WhatARankCannotSayAnyMoreIsPrintedHere) {
  EXPECT_EXIT(as_rank_1([](base::Pulse& other) {
                const auto gone = ::fork();
                if (gone == 0) std::_Exit(0);
                ::waitpid(gone, nullptr, 0);
                other.process = gone;
                leave_to_another_rank(kText, GlobalRank(0));
                say_once(kText);
              }),
              testing::ExitedWithCode(0), "^smp: the flag is wrong\n$");
}

TEST_F(CommonErrorsDeathTest, WhatIsKnownBesideIsPrinted) {
  EXPECT_EXIT(
      as_rank_1([](base::Pulse&) {
        say_more("kaboom", "rank 1, module a (forward), microbatch 3: kaboom");
        say_once("kaboom");
        say_once("another kaboom");
      }),
      testing::ExitedWithCode(0),
      "^smp: rank 1, module a .forward., microbatch 3: kaboom\nsmp: rank 1: another kaboom\n$");
}

TEST(CommonErrors, ProcessesThatAreNoRankPrintAll) {
  leave_to_another_rank(kText, GlobalRank(0));
  testing::internal::CaptureStderr();
  say_once(kText);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), std::string("smp: ") + kText + "\n");
}

}  // namespace
}  // namespace smp::server
