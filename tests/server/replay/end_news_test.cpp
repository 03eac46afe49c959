// Which ranks must be told that a microbatch has ended.
#include "server/replay/end_news.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace smp::server {
namespace end_news_test {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

const PpRank kFirst(1), kSecond(2);

TEST(EndNews, WhoWasAskedForABackwardKnows) {
  EndNews news(2, 3);
  news.record_kept(1);
  news.asked(1, kSecond);
  news.record_gone(1);
  EXPECT_THAT(news.to_tell(1), ElementsAre(kFirst)) << "it was not asked";
  EXPECT_THAT(news.to_tell(0), ElementsAre(kFirst, kSecond)) << "for another microbatch";
}

TEST(EndNews, NobodyKnowsAsLongAsARecordIsKept) {
  for (const bool kept : {true, false}) {
    EndNews news(1, 3);
    news.asked(0, kFirst);
    news.asked(0, kSecond);
    news.record_kept(0);
    if (kept) {
      EXPECT_THAT(news.to_tell(0), ElementsAre(kFirst, kSecond)) << "the record may keep others";
    } else {
      news.record_gone(0);
      EXPECT_THAT(news.to_tell(0), IsEmpty());
    }
  }
}

/// The loss of a call that has not answered: its backward takes the record before that is known.
TEST(EndNews, ABackwardMayBeAskedForBeforeItsRecordIsKnown) {
  EndNews news(1, 2);
  news.asked(0, kFirst);
  news.record_gone(0);
  news.record_kept(0);
  EXPECT_THAT(news.to_tell(0), IsEmpty());
}

TEST(EndNews, ABackwardThatDidNotBeginSaysNothing) {
  for (const bool asked_again : {false, true}) {
    EndNews news(1, 2);
    news.record_kept(0);
    news.asked(0, kFirst);
    news.record_gone(0);
    news.not_begun(0, kFirst);
    news.record_kept(0);
    news.record_gone(0);  // it was released
    if (asked_again) news.asked(0, kFirst);
    EXPECT_EQ(news.to_tell(0).empty(), asked_again);
  }
}

/// While nothing moves, whatever is known.
TEST(EndNews, EveryoneIsToldOnceAtMost) {
  EndNews news(3, 3);
  news.asked(2, kFirst);
  EXPECT_THAT(news.to_tell(2), ElementsAre(kSecond));
  EXPECT_THAT(news.to_tell(0), ElementsAre(kFirst, kSecond));
  EXPECT_THAT(news.take_untold(), ElementsAre(Pair(2, ElementsAre(kFirst)))) << "1 has not ended";
  EXPECT_THAT(news.take_untold(), IsEmpty());
}

TEST(EndNews, EveryoneMayBeToldAtOnce) {
  EndNews news(1, 3);
  news.asked(0, kFirst);
  news.hide_nothing();
  EXPECT_THAT(news.to_tell(0), ElementsAre(kFirst, kSecond));
}

}  // namespace end_news_test
}  // namespace smp::server
