// An idle thread spins, gives way, and then sleeps ever longer.
#include "fiber/idler.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>

namespace smp::fiber {
namespace {

class IdlerTest : public testing::Test {
 protected:
  IdlerTest() { idler_.set_policy(policy_); }
  /// How often this thread slept; giving way does not count.
  static long sleeps() {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
  }
  /// Whether the idler sleeps when it was idle since kStart, and it is `idle_for` later.
  bool sleeps_after(base::Nanoseconds idle_for) {
    const auto before = sleeps();
    idler_.back_off(kStart + idle_for);
    return sleeps() != before;
  }
  /// How long the idler sleeps then.
  base::Nanoseconds sleep_after(base::Nanoseconds idle_for) {
    const base::SteadyClock clock;
    const auto before = clock.now();
    idler_.back_off(kStart + idle_for);
    return clock.now() - before;
  }

  static constexpr base::Nanoseconds kStart = base::kSecond;
  IdlePolicy policy_{.spin = 10 * base::kMicrosecond,
                     .first_sleep = base::kMillisecond,
                     .longest_sleep = 4 * base::kMillisecond};
  Idler idler_;
};

TEST_F(IdlerTest, SleepsOnlyAfterAHundredTimesItsSpin) {
  for (const auto idle_for : {0, 9'999, 10'000, 999'999}) {
    EXPECT_FALSE(sleeps_after(idle_for)) << idle_for;
  }
  EXPECT_TRUE(sleeps_after(1'000'000));
}

TEST_F(IdlerTest, SleepsLongerEveryTimeUpToALimit) {
  idler_.back_off(kStart);
  EXPECT_GE(sleep_after(base::kSecond), base::kMillisecond);
  EXPECT_GE(sleep_after(base::kSecond), 2 * base::kMillisecond);
  EXPECT_GE(sleep_after(base::kSecond), 4 * base::kMillisecond);
  base::Nanoseconds shortest = base::kSecond;
  for (int i = 0; i < 4; ++i) shortest = std::min(shortest, sleep_after(base::kSecond));
  EXPECT_GE(shortest, 4 * base::kMillisecond);
  EXPECT_LT(shortest, 8 * base::kMillisecond);
}

TEST_F(IdlerTest, BeginsAnewAfterProgress) {
  idler_.back_off(kStart);
  EXPECT_TRUE(sleeps_after(base::kSecond));
  EXPECT_TRUE(sleeps_after(base::kSecond));
  idler_.progressed();
  EXPECT_FALSE(sleeps_after(base::kSecond)) << "it is idle since then";
  EXPECT_FALSE(sleeps_after(base::kSecond + 999'999));
  base::Nanoseconds shortest = base::kSecond;
  for (int i = 0; i < 4; ++i) {
    idler_.progressed();
    idler_.back_off(kStart);
    shortest = std::min(shortest, sleep_after(base::kSecond));
  }
  EXPECT_LT(shortest, 2 * base::kMillisecond) << "the first sleep is short again";
}

TEST_F(IdlerTest, LooksOnceMoreBeforeItSleepsAtADoorbell) {
  std::uint32_t word = 0;
  base::Doorbell doorbell(word);
  idler_.set_doorbell(&doorbell);
  idler_.back_off(kStart);
  EXPECT_EQ(word, 0u) << "nobody needs to ring while it spins";
  EXPECT_FALSE(sleeps_after(base::kSecond));
  EXPECT_NE(word, 0u) << "now they do";
  EXPECT_GE(sleep_after(base::kSecond), base::kMillisecond);
  EXPECT_EQ(word, 0u);
  EXPECT_FALSE(sleeps_after(base::kSecond)) << "before the next sleep too";
  EXPECT_GE(sleep_after(base::kSecond), 2 * base::kMillisecond);
}

TEST_F(IdlerTest, IsWokenByTheDoorbell) {
  std::uint32_t word = 0;
  base::Doorbell doorbell(word);
  idler_.set_doorbell(&doorbell);
  idler_.back_off(kStart);
  for (int i = 0; i < 10; ++i) {
    idler_.back_off(kStart + base::kSecond);
    base::Doorbell(word).ring();
    EXPECT_LT(sleep_after(base::kSecond), base::kMillisecond);
  }
}

TEST_F(IdlerTest, NeedsNoRingsAfterProgress) {
  std::uint32_t word = 0;
  base::Doorbell doorbell(word);
  idler_.set_doorbell(&doorbell);
  idler_.back_off(kStart);
  idler_.back_off(kStart + base::kSecond);
  EXPECT_NE(word, 0u);
  idler_.progressed();
  EXPECT_EQ(word, 0u);
  idler_.back_off(kStart);
  idler_.back_off(kStart + base::kSecond);
  idler_.set_doorbell(nullptr);
  EXPECT_EQ(word, 0u);
}

TEST_F(IdlerTest, DoesNotSpinOnSharedCores) {
  EXPECT_FALSE(idler_.oversubscribed());
  EXPECT_EQ(idler_.spin(), policy_.spin);
  policy_.oversubscribed = true;
  idler_.set_policy(policy_);
  EXPECT_TRUE(idler_.oversubscribed());
  EXPECT_EQ(idler_.spin(), 0);
  EXPECT_FALSE(sleeps_after(0));
  EXPECT_FALSE(sleeps_after(9'999));
  EXPECT_TRUE(sleeps_after(10'000)) << "others need the core";
}

TEST_F(IdlerTest, ABriefSleepIsASleep) {
  const auto before = sleeps();
  sleep_briefly(100 * base::kMicrosecond);
  EXPECT_GT(sleeps(), before);
}

}  // namespace
}  // namespace smp::fiber
