// What a process says when it is asked to end while other ranks are gone.
#include "alive/end_signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <utility>

#include "alive/pulse.h"
#include "support/gone_process.h"

namespace smp::base {
namespace {

/// In a child, which is rank 1 of three and is asked to end: rank 0 is gone, after `before`; rank 2
/// lives.
[[noreturn]] void end_beside_one_that_is_gone(const std::function<void(Pulse& gone)>& before) {
  PulseBoard board(SharedMemory::make(PulseBoard::bytes_for(3)).value());
  auto& gone = board.of(0);
  auto& alive = board.of(2);
  PulseBoard::join(std::move(board), 1);
  gone.process = process_that_is_gone();
  gone.named = false;
  alive.process = ::getpid();
  before(gone);
  const EndSignals signals;
  std::raise(SIGTERM);
  std::_Exit(0);
}

class EndSignalsDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(EndSignalsDeathTest, ARankThatIsGoneWithoutAWordIsNamed) {
  EXPECT_EXIT(end_beside_one_that_is_gone([](Pulse&) {}), testing::KilledBySignal(SIGTERM),
              "^smp: rank 0 is gone: its process [0-9]+ was killed [^\n]*\n$");
}

TEST_F(EndSignalsDeathTest, WhatItRanLastIsSaid) {
  const auto ran = [](Pulse& gone) {
    gone.module = 2;
    gone.microbatch = 3;
    gone.backward = true;
  };
  EXPECT_EXIT(end_beside_one_that_is_gone(ran), testing::KilledBySignal(SIGTERM),
              "; the last that it ran was of microbatch 3 .backward.\n$");
  EXPECT_EXIT(end_beside_one_that_is_gone([](Pulse& gone) { gone.module = Pulse::kNothing; }),
              testing::KilledBySignal(SIGTERM), "; it ran no module yet\n$");
}

TEST_F(EndSignalsDeathTest, OneThatSaidWhyOrWasAskedToEndIsNot) {
  EXPECT_EXIT(end_beside_one_that_is_gone([](Pulse& gone) { gone.spoke = true; }),
              testing::KilledBySignal(SIGTERM), "^$");
  EXPECT_EXIT(end_beside_one_that_is_gone([](Pulse& gone) { gone.ends = true; }),
              testing::KilledBySignal(SIGTERM), "^$");
}

TEST_F(EndSignalsDeathTest, OneRankNamesItForAll) {
  EXPECT_EXIT(end_beside_one_that_is_gone([](Pulse& gone) { gone.named = true; }),
              testing::KilledBySignal(SIGTERM), "^$");
}

TEST_F(EndSignalsDeathTest, OthersSeeThatThisProcessEnds) {
  const auto live = [] {
    {
      const EndSignals outer;
      { const EndSignals inner; }
      if (own_pulse().ends) std::_Exit(1);
    }
    std::_Exit(own_pulse().ends ? 0 : 2);
  };
  EXPECT_EXIT(live(), testing::ExitedWithCode(0), "");
}

TEST_F(EndSignalsDeathTest, TheLastLineComesLast) {
  const auto end = [] {
    set_last_line([]() noexcept {
      if (write(STDERR_FILENO, "last\n", 5) < 0) std::_Exit(1);
    });
    end_beside_one_that_is_gone([](Pulse&) {});
  };
  EXPECT_EXIT(end(), testing::KilledBySignal(SIGTERM), "^smp: rank 0 is gone[^\n]*\nlast\n$");
}

}  // namespace
}  // namespace smp::base
