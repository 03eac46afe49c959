#include "server/step/weight_parts.h"

#include <gtest/gtest.h>

namespace smp::server {
namespace {

TEST(WeightParts, AMicrobatchWithoutThemEndsWhereItIsDone) {
  WeightParts parts(2);
  EXPECT_TRUE(parts.done_elsewhere(1));
}

TEST(WeightParts, AMicrobatchEndsWithTheLastOfThem) {
  WeightParts parts(2);
  parts.begin(0);
  parts.begin(0);
  EXPECT_FALSE(parts.done_elsewhere(0));
  EXPECT_FALSE(parts.end(0));
  EXPECT_TRUE(parts.end(0));
  EXPECT_TRUE(parts.done_elsewhere(1));
}

TEST(WeightParts, ThoseThatEndEarlierEndNothing) {
  WeightParts parts(1);
  parts.begin(0);
  EXPECT_FALSE(parts.end(0));
  EXPECT_TRUE(parts.done_elsewhere(0));
}

}  // namespace
}  // namespace smp::server
