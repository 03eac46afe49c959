// A rank that writes is waited for.
#include "alive/writing.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <utility>

#include "alive/pulse.h"
#include "support/gone_process.h"

namespace smp::base {
namespace {

/// In a child, which is rank 1 of two.
int wait_for_a_writer() {
  PulseBoard board(SharedMemory::make(PulseBoard::bytes_for(2)).value());
  auto& other = board.of(0);
  PulseBoard::join(std::move(board), 1);
  const EndOfPatience end(0);
  ::usleep(1000);
  if (!end.has_come()) return 1;
  other.process = ::getpid();
  other.writing = 1;
  if (end.has_come()) return 2;
  other.process = process_that_is_gone();
  if (!end.has_come()) return 3;
  other.process = ::getpid();
  other.writing = 0;
  if (!end.has_come()) return 4;
  return EndOfPatience(kSecond).has_come() ? 5 : 0;
}

/// Its own writing does not count.
int write() {
  PulseBoard board(SharedMemory::make(PulseBoard::bytes_for(1)).value());
  PulseBoard::join(std::move(board), 0);
  std::optional<Writing> writing(std::in_place);
  {
    const Writing nested;
    if (own_pulse().writing != 2) return 1;
  }
  const EndOfPatience end(0);
  ::usleep(1000);
  if (!end.has_come()) return 2;
  writing.reset();
  return own_pulse().writing == 0 ? 0 : 3;
}

TEST(WritingDeathTest, KeepsOthersWaiting) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(wait_for_a_writer()), testing::ExitedWithCode(0), "");
}

TEST(WritingDeathTest, IsSeenByOthers) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(write()), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace smp::base
