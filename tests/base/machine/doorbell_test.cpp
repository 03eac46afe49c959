// Who waits at a doorbell is woken by what was left before the ring, and misses none.
#include "base/machine/doorbell.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace smp::base {
namespace doorbell_test {

constexpr Nanoseconds kLong = kSecond - 1;

TEST(Doorbell, WaitsNoLongerThanItIsTold) {
  std::uint32_t word = 0;
  Doorbell bell(word);
  const SteadyClock clock;
  const auto start = clock.now();
  bell.arm();
  EXPECT_FALSE(bell.wait(20 * kMillisecond));
  EXPECT_GE(clock.now() - start, 15 * kMillisecond);
  EXPECT_LT(clock.now() - start, kLong);
}

TEST(Doorbell, KnowsThatItWasRungBeforeTheWait) {
  std::uint32_t word = 0;
  Doorbell bell(word);
  bell.arm();
  Doorbell(word).ring();
  const SteadyClock clock;
  const auto start = clock.now();
  EXPECT_TRUE(bell.wait(kLong));
  EXPECT_LT(clock.now() - start, kLong / 2);
}

TEST(Doorbell, ForgetsRingsWhileItIsNotArmed) {
  std::uint32_t word = 0;
  Doorbell bell(word);
  bell.ring();
  bell.arm();
  EXPECT_FALSE(bell.wait(kMillisecond));
  bell.arm();
  bell.disarm();
  bell.ring();
  bell.arm();
  EXPECT_FALSE(bell.wait(kMillisecond));
}

/// Counters that two sides raise by turns, and what each sleeps on.
struct Turns {
  std::uint32_t words[2] = {0, 0};
  std::atomic<int> turns[2] = {0, 0};
};

/// How often this side was not woken although the other had made its turn. (A ring that woke
/// nobody, because the sleeper saw it first, may wake him early the next time.)
int missed(Turns& turns, int side, int rounds) {
  const SteadyClock clock;
  Doorbell own(turns.words[side]), other(turns.words[1 - side]);
  int missed = 0;
  for (int round = 1; round <= rounds; ++round) {
    if (side == 0) {
      turns.turns[0].store(round, std::memory_order_relaxed);
      other.ring();
    }
    while (turns.turns[1 - side].load(std::memory_order_relaxed) < round) {
      own.arm();
      if (turns.turns[1 - side].load(std::memory_order_relaxed) >= round) break;
      const auto start = clock.now();
      if (!own.wait(kLong) && clock.now() - start > kLong / 2) ++missed;
    }
    own.disarm();
    if (side == 1) {
      turns.turns[1].store(round, std::memory_order_relaxed);
      other.ring();
    }
  }
  return missed;
}

TEST(Doorbell, MissesNothingBetweenTwoThreads) {
  Turns turns;
  constexpr int kRounds = 100'000;
  int of_thread = 0;
  std::thread thread([&] { of_thread = missed(turns, 1, kRounds); });
  EXPECT_EQ(missed(turns, 0, kRounds), 0);
  thread.join();
  EXPECT_EQ(of_thread, 0);
}

TEST(Doorbell, WakesAnotherProcess) {
  void* const memory =
      ::mmap(nullptr, sizeof(Turns), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& turns = *new (memory) Turns;
  constexpr int kRounds = 1'000;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(missed(turns, 1, kRounds) == 0 ? 0 : 1);
  EXPECT_EQ(missed(turns, 0, kRounds), 0);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::munmap(memory, sizeof(Turns));
}

}  // namespace doorbell_test
}  // namespace smp::base
