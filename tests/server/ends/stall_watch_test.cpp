// When a stall is reported, and when it ends the waits.
#include "server/ends/stall_watch.h"

#include <gtest/gtest.h>

#include <vector>

#include "server/hand_clock.h"

namespace smp::server {
namespace {

class StallWatchTest : public testing::Test {
 protected:
  StallWatch watch(StallWatch::Limits limits) {
    return {clock_,
            limits,
            {[this](double seconds) { reports_.push_back(seconds); },
             [this](double seconds) { prepared_.push_back(seconds); },
             [this](double seconds) {
               aborts_.push_back(seconds);
               return aborts_.size() >= refusals_ + 1;
             },
             [this] { ++checks_; }}};
  }
  // Polls often enough for the clock to be read.
  void pass(StallWatch& watch, double seconds, bool waiting = true, bool progress = false) {
    watch.poll(waiting, progress);
    clock_.time += static_cast<base::Nanoseconds>(seconds * base::kSecond);
    for (int i = 0; i < 64; ++i) watch.poll(waiting, progress);
  }

  HandClock clock_;
  std::vector<double> reports_;
  std::vector<double> prepared_;
  std::size_t refusals_ = 0;
  std::vector<double> aborts_;
  int checks_ = 0;
};

TEST_F(StallWatchTest, ReportsOnceAndThenEnds) {
  auto own = watch({30, 600});
  pass(own, 29);
  EXPECT_TRUE(reports_.empty());
  pass(own, 2);
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_NEAR(reports_[0], 31, 1e-6);
  pass(own, 500);
  EXPECT_TRUE(aborts_.empty());
  pass(own, 100);
  EXPECT_EQ(reports_.size(), 1u);
  ASSERT_EQ(aborts_.size(), 1u);
  pass(own, 100);
  EXPECT_EQ(aborts_.size(), 1u);
}

TEST_F(StallWatchTest, ChecksTheLinksAsLongAsNothingMoves) {
  auto own = watch({0, 0});
  pass(own, 0.9);
  EXPECT_EQ(checks_, 0);
  pass(own, 0.2);
  pass(own, 0.2);
  EXPECT_EQ(checks_, 2);
  pass(own, 10, false);
  pass(own, 10, true, true);
  EXPECT_EQ(checks_, 2);
}

TEST_F(StallWatchTest, PreparesOnceBeforeTheEnd) {
  auto own = watch({0, 10});
  pass(own, 7.5);
  EXPECT_TRUE(prepared_.empty());
  pass(own, 1);
  pass(own, 1);
  EXPECT_EQ(prepared_.size(), 1u);
  EXPECT_TRUE(aborts_.empty());
}

TEST_F(StallWatchTest, EndsAgainUntilThatIsAccepted) {
  refusals_ = 2;
  auto own = watch({0, 10});
  for (int i = 0; i < 5; ++i) pass(own, 11);
  EXPECT_EQ(aborts_.size(), 3u);
}

TEST_F(StallWatchTest, ProgressStartsTheCountAgain) {
  auto own = watch({30, 600});
  pass(own, 29);
  own.poll(true, true);
  pass(own, 29);
  EXPECT_TRUE(reports_.empty());
  pass(own, 2);
  EXPECT_EQ(reports_.size(), 1u);
  own.poll(true, true);
  pass(own, 31);
  EXPECT_EQ(reports_.size(), 2u);
}

TEST_F(StallWatchTest, IsSilentWhileNobodyWaits) {
  auto own = watch({30, 600});
  pass(own, 1000, /*waiting=*/false);
  EXPECT_TRUE(reports_.empty());
  EXPECT_TRUE(aborts_.empty());
}

TEST_F(StallWatchTest, ZeroMeansNever) {
  auto own = watch({0, 0});
  pass(own, 1e6);
  EXPECT_TRUE(reports_.empty());
  EXPECT_TRUE(aborts_.empty());
}

}  // namespace
}  // namespace smp::server
