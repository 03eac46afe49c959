// When a link has lost something, and when it is only slow, busy or asleep.
#include "d2d/watch/link_watch.h"

#include <gtest/gtest.h>

#include <random>

namespace smp::d2d {
namespace {

constexpr base::Nanoseconds kPatience = 5 * base::kSecond;

/// Both ends of a link, and the time.
class LinkWatchTest : public testing::Test {
 protected:
  void pass(double seconds) { now_ += static_cast<base::Nanoseconds>(seconds * base::kSecond); }
  std::optional<LinkLoss> look() { return watch_.look(own_, theirs_, now_); }
  /// One look a second, as long as nothing is lost.
  std::optional<LinkLoss> looks(int seconds) {
    std::optional<LinkLoss> loss = look();
    for (int i = 0; i < seconds && !loss; ++i) {
      pass(1);
      loss = look();
    }
    return loss;
  }

  LinkWatch watch_{base::kSecond, kPatience};
  LinkCounts own_, theirs_;
  base::Nanoseconds now_ = 1'000 * base::kSecond;
};

TEST_F(LinkWatchTest, FindsNothingWhereAllHasArrived) {
  own_.control_sent = theirs_.control_received = {7, 7'000};
  theirs_.data_sent = own_.data_received = {3, 3'000};
  EXPECT_FALSE(looks(100));
}

TEST_F(LinkWatchTest, FindsAMessageThatThisEndHasSent) {
  own_.control_sent = {7, 700};
  theirs_.control_received = {5, 500};
  EXPECT_FALSE(looks(4)) << "it may be late";
  const auto loss = looks(2);
  ASSERT_TRUE(loss);
  EXPECT_TRUE(loss->sent_by_this_end);
  EXPECT_EQ(loss->messages, 2);
  EXPECT_EQ(loss->of, 7);
  EXPECT_NEAR(loss->seconds, 6, 1.1);
}

TEST_F(LinkWatchTest, FindsWhatTheOtherEndHasSent) {
  theirs_.control_sent = {7, 700};
  own_.control_received = {6, 600};
  const auto loss = looks(7);
  ASSERT_TRUE(loss);
  EXPECT_FALSE(loss->sent_by_this_end);
  EXPECT_EQ(loss->messages, 1);
}

TEST_F(LinkWatchTest, FindsDataThatIsLostEitherWay) {
  own_.data_sent = {2, 200};
  theirs_.data_received = {1, 100};
  ASSERT_TRUE(looks(7));
  watch_ = {base::kSecond, kPatience};
  own_ = theirs_ = {};
  theirs_.data_sent = {2, 200};
  const auto loss = looks(7);
  ASSERT_TRUE(loss);
  EXPECT_FALSE(loss->sent_by_this_end);
  EXPECT_EQ(loss->messages, 2);
}

// What is sent later does not hide it, and is not counted as lost.
TEST_F(LinkWatchTest, FindsItBehindWhatIsStillBeingSent) {
  own_.control_sent = {7, 700};
  theirs_.control_received = {6, 600};
  std::optional<LinkLoss> loss;
  for (int i = 0; i < 8 && !loss; ++i) {
    loss = look();
    own_.control_sent.count(100);
    pass(1);
  }
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->messages, 1);
  EXPECT_EQ(loss->of, 7);
}

TEST_F(LinkWatchTest, WaitsForWhatArrivesLate) {
  own_.control_sent = {10, 1'000};
  for (int i = 0; i < 10; ++i) {  // each of them after 4 s
    EXPECT_FALSE(looks(4)) << i;
    theirs_.control_received.count(100);
  }
  EXPECT_FALSE(looks(100));
}

// A link with something new on its way at every look.
TEST_F(LinkWatchTest, DoesNotTakeABusyLinkForABrokenOne) {
  for (int i = 0; i < 100; ++i) {
    own_.control_sent.count(100);
    EXPECT_FALSE(look());
    theirs_.control_received = own_.control_sent;
    pass(1);
  }
}

TEST_F(LinkWatchTest, GivesLargeTransfersTheTimeOfASlowNetwork) {
  own_.data_sent = {1, 100'000'000};
  EXPECT_FALSE(looks(104));
  EXPECT_TRUE(looks(2));
}

// One of the ends was stopped, or inside a long operator: nothing that happened before counts.
TEST_F(LinkWatchTest, BeginsAgainAfterALongPause) {
  own_.control_sent = {7, 700};
  theirs_.control_received = {6, 600};
  EXPECT_FALSE(looks(4));
  pass(60);
  EXPECT_FALSE(looks(4));
  EXPECT_TRUE(looks(2));
}

// Many answers at once, of an end that was stopped.
TEST_F(LinkWatchTest, TakesLooksInQuickSuccessionForOne) {
  own_.control_sent = {7, 700};
  theirs_.control_received = {6, 600};
  EXPECT_FALSE(look());
  pass(4.9);
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(look());
    pass(0.1);
  }
}

// A link that delivers everything in order, a random time after it was sent, up to 4 s, seen by
// ends that look when they like: never broken. The same link that drops one message: found.
TEST_F(LinkWatchTest, FindsLossesAndNothingElseOnRandomLinks) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int bound) { return static_cast<int>(random() % unsigned(bound)); };
    const bool loses = seed % 3 == 0;
    const int last = loses ? below(40) : 1'000;  // that arrives
    watch_ = {base::kSecond, kPatience};
    own_ = theirs_ = {};
    std::vector<base::Nanoseconds> due;
    std::optional<LinkLoss> loss;
    base::Nanoseconds arrival = 0;
    for (int i = 0; i < 400 && !loss; ++i) {
      now_ += below(2'000) * base::kMillisecond;
      if (static_cast<int>(due.size()) < 60 && below(3) == 0) {
        own_.control_sent.count(50);
        arrival = std::max(arrival, now_ + below(4'000) * base::kMillisecond);
        due.push_back(arrival);
      }
      while (theirs_.control_received.messages < std::min<std::int64_t>(last, std::ssize(due)) &&
             due[static_cast<std::size_t>(theirs_.control_received.messages)] <= now_) {
        theirs_.control_received.count(50);
      }
      loss = look();
    }
    EXPECT_EQ(loss.has_value(), loses) << "seed " << seed;
  }
}

}  // namespace
}  // namespace smp::d2d
