// What the line says.
#include "smp/recipe/progress_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/refusal.h"

namespace smp {
namespace {

using testing::HasSubstr;

using testing::StartsWith;

TEST(ProgressLine, SaysHowFarAndHowLong) {
  ProgressLine line(100, 0, false);
  line.step(60);  // plans
  for (int i = 1; i < 50; ++i) line.step(2);
  line.step(30);  // saves
  EXPECT_DOUBLE_EQ(line.seconds_left(), 49 * 2);
  EXPECT_THAT(line.text("loss 2.31"), HasSubstr(" 51 %  1:38 min left  loss 2.31"));
}

TEST(ProgressLine, ABarOfThirty) {
  ProgressLine line(4, 2, false);
  EXPECT_THAT(line.text(), StartsWith("███████████████░░░░░░░░░░░░░░░ 50 %  0 s left"));
  for (int i = 0; i < 3; ++i) line.step(1);  // one more than there should be
  EXPECT_THAT(line.text(), HasSubstr("█ 100 %  0 s left"));
}

TEST(ProgressLine, SpeaksAsClocksDo) {
  EXPECT_EQ(spoken_seconds(-1), "0 s");
  EXPECT_EQ(spoken_seconds(59.4), "59 s");
  EXPECT_EQ(spoken_seconds(59.6), "1:00 min");
  EXPECT_EQ(spoken_seconds(3599), "59:59 min");
  EXPECT_EQ(spoken_seconds(7830), "2:10 h");
  EXPECT_EQ(spoken_seconds(442800), "5 d 3 h");
  for (const double odd : {double{NAN}, double{INFINITY}, 1e300})
    EXPECT_EQ(spoken_seconds(odd), "? s");
}

TEST(ProgressLine, RefusesStepsThatCannotBe) {
  EXPECT_THAT(refusal([] { ProgressLine line(0); }), HasSubstr("0 of 0"));
  EXPECT_THAT(refusal([] { ProgressLine line(3, 4); }), HasSubstr("4 of 3"));
}

}  // namespace
}  // namespace smp
