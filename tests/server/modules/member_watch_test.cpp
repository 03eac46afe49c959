// Who writes the members of a module: caches may be filled, state is said.
#include "server/modules/member_watch.h"

#include <gtest/gtest.h>

namespace smp::server {
namespace member_watch_test {

struct Object {
  int before = 0;
  char base[16] = {};
  int after = 0;
};

class MemberWatchTest : public ::testing::Test {
 protected:
  bool call(int microbatch, bool writes) {
    const bool entered = watch_.enter(microbatch);
    if (writes) ++object_.after;
    return watch_.leave(microbatch) || entered;
  }
  Object object_;
  MemberWatch watch_{{reinterpret_cast<const char*>(&object_), sizeof object_,
                      offsetof(Object, base), sizeof object_.base}};
};

TEST_F(MemberWatchTest, OneCallMayFillACache) {
  EXPECT_FALSE(call(0, true));
  EXPECT_FALSE(call(1, false));
  EXPECT_FALSE(call(2, true)) << "a batch of another size";
  EXPECT_FALSE(call(3, false));
}

TEST_F(MemberWatchTest, TwoCallsInARowThatWriteKeepState) {
  EXPECT_FALSE(call(0, true));
  EXPECT_TRUE(call(1, true));
  EXPECT_EQ(watch_.earlier_microbatch(), 0);
  EXPECT_EQ(watch_.microbatch(), 1);
  EXPECT_EQ(watch_.offset(), offsetof(Object, after));
}

TEST_F(MemberWatchTest, SoDoesOneMicrobatchThatCallsTwice) {
  EXPECT_FALSE(call(0, true));
  EXPECT_TRUE(call(0, true));
}

TEST_F(MemberWatchTest, AWriteOfACallInProgressIsFoundByTheNext) {
  EXPECT_FALSE(watch_.enter(0));
  ++object_.before;  // microbatch 0 fills a cache, or keeps something
  EXPECT_FALSE(watch_.enter(1));
  EXPECT_FALSE(watch_.leave(1)) << "1 used the cache";
  EXPECT_FALSE(watch_.enter(2));
  ++object_.before;
  EXPECT_TRUE(watch_.leave(2)) << "0 and 2 wrote";
  EXPECT_EQ(watch_.offset(), 0u);
}

TEST_F(MemberWatchTest, AWriteThatIsUndoneBeforeTheEndIsFoundAtASwitch) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(watch_.enter(i));
    ++object_.after;
    watch_.suspend(i);
    --object_.after;
    EXPECT_EQ(watch_.leave(i), i > 0);
  }
}

TEST_F(MemberWatchTest, TheBaseIsNotTheUsers) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(watch_.enter(i));
    ++object_.base[3];
    EXPECT_FALSE(watch_.leave(i));
  }
}

TEST_F(MemberWatchTest, WhatOthersWriteBetweenCallsIsNotItsState) {
  for (int i = 0; i < 3; ++i) {
    ++object_.after;
    EXPECT_FALSE(call(i, false));
  }
}

TEST(MemberWatch, WatchesNothingWithoutMembers) {
  const char base[16] = {};
  EXPECT_FALSE(MemberWatch({base, sizeof base, 0, sizeof base}).on());
  EXPECT_FALSE(MemberWatch().on());
}

}  // namespace member_watch_test
}  // namespace smp::server
