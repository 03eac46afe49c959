// Which ranks must be told that a microbatch has ended.
#include "server/end_news.h"

#include <gtest/gtest.h>

namespace smp::server {
namespace end_news_test {

const PpRank kFirst(1), kSecond(2);

TEST(EndNews, WhoWasAskedForABackwardKnows) {
  EndNews news(2, 3);
  news.record_kept(1);
  news.asked(1, kSecond);
  news.record_gone(1);
  EXPECT_FALSE(news.must_be_told(1, kSecond));
  EXPECT_TRUE(news.must_be_told(1, kFirst)) << "it was not asked";
  EXPECT_TRUE(news.must_be_told(0, kSecond)) << "for another microbatch";
}

TEST(EndNews, NobodyKnowsAsLongAsARecordIsKept) {
  EndNews news(1, 3);
  news.asked(0, kFirst);
  news.asked(0, kSecond);
  news.record_kept(0);
  EXPECT_TRUE(news.must_be_told(0, kFirst));
  EXPECT_TRUE(news.must_be_told(0, kSecond)) << "the record may keep others";
  news.record_gone(0);
  EXPECT_FALSE(news.must_be_told(0, kFirst));
}

/// The loss of a call that has not answered: its backward takes the record before that is known.
TEST(EndNews, ABackwardMayBeAskedForBeforeItsRecordIsKnown) {
  EndNews news(1, 2);
  news.asked(0, kFirst);
  news.record_gone(0);
  news.record_kept(0);
  EXPECT_FALSE(news.must_be_told(0, kFirst));
}

TEST(EndNews, ABackwardThatDidNotBeginSaysNothing) {
  EndNews news(1, 2);
  news.record_kept(0);
  news.asked(0, kFirst);
  news.record_gone(0);
  news.not_begun(0, kFirst);
  news.record_kept(0);
  EXPECT_TRUE(news.must_be_told(0, kFirst));
  news.record_gone(0);
  EXPECT_TRUE(news.must_be_told(0, kFirst)) << "its record was released";
  news.asked(0, kFirst);
  EXPECT_FALSE(news.must_be_told(0, kFirst));
}

}  // namespace end_news_test
}  // namespace smp::server
