// A program that has failed does not exit as if it had not.
#include "alive/exit_watch.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace smp::base {
namespace {

using testing::ExitedWithCode;

class ExitWatchDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

[[noreturn]] void fail_and_exit(int code) {
  note_failure();
  std::exit(code);
}

[[noreturn]] void exit_in_session(int code) {
  const ExitWatch session;
  std::exit(code);
}

[[noreturn]] void end_session_and_exit(bool unwinding, int code) {
  try {
    const ExitWatch session;
    if (unwinding) throw std::runtime_error("the mat is too short");
  } catch (const std::runtime_error&) {  // as by a main() that catches everything
  }
  std::exit(code);
}

TEST_F(ExitWatchDeathTest, WhatLaunchersTakeForSuccessBecomesAFailure) {
  for (const int code : {0, 256, 512, -256}) {
    EXPECT_EXIT(fail_and_exit(code), ExitedWithCode(1), "^$") << code;
    EXPECT_EXIT(end_session_and_exit(true, code), ExitedWithCode(1), "^$") << code;
  }
}

TEST_F(ExitWatchDeathTest, OtherCodesStay) {
  EXPECT_EXIT(fail_and_exit(3), ExitedWithCode(3), "^$");
  EXPECT_EXIT(end_session_and_exit(true, 255), ExitedWithCode(255), "^$");
}

TEST_F(ExitWatchDeathTest, WhatHasEndedWellStaysWell) {
  EXPECT_EXIT(end_session_and_exit(false, 0), ExitedWithCode(0), "^$");
  EXPECT_EXIT(end_session_and_exit(false, 3), ExitedWithCode(3), "^$");
}

TEST_F(ExitWatchDeathTest, AStepThatSucceedsLaterMakesUpForIt) {
  EXPECT_EXIT(
      {
        note_failure();
        forgive_failure();
        std::exit(0);
      },
      ExitedWithCode(0), "^$");
}

TEST_F(ExitWatchDeathTest, ExitBeforeTheEndOfTheSessionIsSaid) {
  EXPECT_EXIT(exit_in_session(0), ExitedWithCode(1),
              "^smp: the program called exit.0. before the end of its session[^\n]*\n$");
  EXPECT_EXIT(exit_in_session(256), ExitedWithCode(1), "exit.256.");
  EXPECT_EXIT(exit_in_session(7), ExitedWithCode(7), "exit.7.");
}

TEST_F(ExitWatchDeathTest, HandlersThatAreLeftRunAllTheSame) {
  EXPECT_EXIT(
      {
        std::atexit([] { std::fputs("the last word\n", stderr); });
        note_failure();
        std::atexit([] { std::fputs("the first word\n", stderr); });
        std::exit(0);
      },
      ExitedWithCode(1), "^the first word\nthe last word\n$");
}

TEST_F(ExitWatchDeathTest, AForkedChildEndsAsItSays) {
  EXPECT_EXIT(
      {
        const ExitWatch session;
        const auto child = ::fork();
        if (child == 0) std::exit(0);
        int status = -1;
        ::waitpid(child, &status, 0);
        std::_Exit(status == 0 ? 5 : 6);
      },
      ExitedWithCode(5), "^$");
}

}  // namespace
}  // namespace smp::base
