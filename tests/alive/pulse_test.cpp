// What a process shows of itself, before and after it joins the board of its job.
#include "alive/pulse.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "alive/heartbeat.h"
#include "base/clock.h"

namespace smp::base {
namespace {

PulseBoard board_of(int ranks) {
  return PulseBoard(SharedMemory::make(PulseBoard::bytes_for(ranks)).value());
}

TEST(Pulse, CountsBeatsWithoutABoard) {
  const auto before = own_pulse().beats.load();
  beat();
  EXPECT_EQ(own_pulse().beats, before + 1);
  EXPECT_EQ(ranks_on_board(), 0);
  EXPECT_EQ(pulse_of(0), nullptr);
}

/// In a child: a board is never taken down.
int seen_on_a_board() {
  PulseBoard::join(board_of(3), 2);
  beat();
  const auto* const own = pulse_of(2);
  if (ranks_on_board() != 3 || own == nullptr || own->beats != 1) return 1;
  if (own->process != ::getpid() || own->rank != 2 || own != &own_pulse()) return 2;
  if (SteadyClock().now() - own->last_beat > kSecond) return 4;
  if (accuser_of(0) != 2) return 5;  // of one that nobody sees
  if (pulse_of(0) != nullptr || pulse_of(3) != nullptr || pulse_of(-1) != nullptr) return 3;
  return 0;
}

/// In a child, which is rank 2 of three.
int accused_on_a_board() {
  auto board = board_of(3);
  auto& first = board.of(0);
  auto& second = board.of(1);
  PulseBoard::join(std::move(board), 2);
  first.process = second.process = ::getpid();
  first.accuser = 1;
  second.accuser = -1;
  if (accuser_of(0) != 1) return 1;
  if (accuser_of(1) != 2 || second.accuser != 2 || accuser_of(1) != 2) return 2;
  return 0;
}

/// In a child: what a child of its own says, as one that makes a trial run, is not said by itself.
int silent_children() {
  auto board = board_of(2);
  auto& own = board.of(1);
  PulseBoard::join(std::move(board), 1);
  const auto beats = own.beats.load();
  const auto child = ::fork();
  if (child == 0) {
    beat();
    own_pulse().spoke = true;
    std::_Exit(ranks_on_board() == 0 && pulse_of(1) == nullptr && &own_pulse() != &own ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  if (status != 0) return 1;
  return !own.spoke && own.beats == beats && ranks_on_board() == 2 && &own_pulse() == &own ? 0 : 2;
}

TEST(PulseDeathTest, AForkedChildIsNotSeenOnTheBoard) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(silent_children()), testing::ExitedWithCode(0), "");
}

TEST(PulseDeathTest, TheFirstRankThatEndsTheJobForAStoppedOneIsItsAccuser) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(accused_on_a_board()), testing::ExitedWithCode(0), "");
}

TEST(PulseDeathTest, IsSeenOnTheBoard) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(seen_on_a_board()), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace smp::base
