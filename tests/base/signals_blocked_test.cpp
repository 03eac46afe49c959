// Which signals a thread takes depends on when it was started.
#include "base/signals_blocked.h"

#include <gtest/gtest.h>

#include <thread>

namespace smp::base {
namespace signals_blocked_test {

bool takes(int signal) {
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  return sigismember(&blocked, signal) == 0;
}

TEST(SignalsBlocked, ForThreadsThatAreStartedMeanwhile) {
  std::thread before, meanwhile;
  bool before_takes = false, meanwhile_takes = true;
  before = std::thread([&] { before_takes = takes(SIGTERM); });
  {
    const SignalsBlocked blocked;
    EXPECT_FALSE(takes(SIGTERM));
    meanwhile = std::thread([&] { meanwhile_takes = takes(SIGTERM) || takes(SIGUSR1); });
  }
  EXPECT_TRUE(takes(SIGTERM));
  before.join();
  meanwhile.join();
  EXPECT_TRUE(before_takes);
  EXPECT_FALSE(meanwhile_takes) << "also after it is over";
}

TEST(SignalsBlocked, WhatWasBlockedBeforeStaysSo) {
  sigset_t one, own;
  sigemptyset(&one);
  sigaddset(&one, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &one, &own);
  { const SignalsBlocked blocked; }
  EXPECT_FALSE(takes(SIGUSR2));
  EXPECT_TRUE(takes(SIGUSR1));
  pthread_sigmask(SIG_SETMASK, &own, nullptr);
}

}  // namespace signals_blocked_test
}  // namespace smp::base
