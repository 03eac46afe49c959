// What a gradient waits for: for all that may still come before it, and for nothing else.
#include <gmock/gmock.h>

#include "server/sums/gradient_accumulator.h"
#include "server/sums/gradient_accumulator_testing.h"
#include "smp/error.h"

namespace smp::server::test {
namespace gradient_accumulator_waits_test {

using testing::ElementsAre;
using testing::IsEmpty;

TEST_F(GradientAccumulatorTest, DoesNotWaitForExecutionsThatCannotReachTheParameter) {
  record_reaching({&other_}, 0, {});
  const auto id = record(1);
  accumulator_.mark_forward_done(0);
  accumulator_.mark_forward_done(1);
  put_and_close(id, 3);
  EXPECT_THAT(weight_.applied, ElementsAre(3));
}

TEST_F(GradientAccumulatorTest, DoesNotWaitForExecutionsThatWereReleased) {
  const auto released = record(0);
  const auto id = record(1);
  accumulator_.mark_forward_done(0);
  accumulator_.mark_forward_done(1);
  put_and_close(id, 3);
  EXPECT_THAT(weight_.applied, IsEmpty());
  accumulator_.mark_closed(released);
  accumulator_.settle();
  EXPECT_THAT(weight_.applied, ElementsAre(3));
}

TEST_F(GradientAccumulatorTest, WaitsOnlyForTheParametersThatAnExecutionReaches) {
  const auto low = record_reaching({&weight_}, 0, call_path({0}));
  const auto both = record_reaching({&weight_, &other_}, 0, call_path({1}));
  const auto high = record_reaching({&other_}, 0, call_path({2}));
  accumulator_.mark_forward_done(0);
  put(low, weight_, 1);
  put(both, other_, 2);
  EXPECT_THAT(other_.applied, IsEmpty());
  accumulator_.close(high);  // without a gradient
  EXPECT_THAT(other_.applied, ElementsAre(2));
  EXPECT_THAT(weight_.applied, IsEmpty());
  put(both, weight_, 4);
  EXPECT_THAT(weight_.applied, ElementsAre(5));
}

TEST_F(GradientAccumulatorTest, CountsAnUndefinedGradientAsGiven) {
  const auto first = record(0, call_path({0}));
  const auto second = record(0, call_path({1}));
  accumulator_.mark_forward_done(0);
  put(first, 1);
  GradientAccumulator::Pass(accumulator_, second, false).put(weight_.leaf(), {at::Tensor()});
  EXPECT_THAT(weight_.applied, ElementsAre(1));
}

TEST_F(GradientAccumulatorTest, RefusesAGraphThatComesAfterTheForward) {
  const auto first = record(0, call_path({0}));
  const auto second = accumulator_.open(0, call_path({1}), false);
  accumulator_.mark_forward_done(0);
  put(first, 1);
  EXPECT_THROW(accumulator_.recorded(second, {}), InternalError);
  EXPECT_NO_THROW(accumulator_.recorded(first, {}));
}

/// A backward inside a backward, as of a checkpoint: its leaves are in no graph that was recorded.
TEST_F(GradientAccumulatorTest, TakesWhatNobodyCouldKnowOf) {
  const auto first = record_reaching({&other_}, 0, {});
  const auto second = record(1);
  accumulator_.mark_forward_done(0);
  accumulator_.mark_forward_done(1);
  put(first, 1);
  put_and_close(second, 2);
  put(first, 4);
  put(first, 8);
  EXPECT_THAT(weight_.applied, ElementsAre(1, 2, 4, 8));
  accumulator_.finish();
  EXPECT_EQ(weight_.grad(), 15);
}

/// In reverse, their sum would be 0 instead of 1.
TEST_F(GradientAccumulatorTest, AddsWhatOneExecutionGivesAsItComes) {
  const auto first = record(0, call_path({0}));
  const auto second = record(0, call_path({1}));
  accumulator_.mark_forward_done(0);
  for (const bool after : {false, true}) {
    for (const float gradient : {1e30F, -1e30F, 1.0F}) put(first, gradient, after);
  }
  EXPECT_THAT(weight_.applied, IsEmpty());
  accumulator_.close(second);
  EXPECT_THAT(weight_.applied, ElementsAre(1));
  accumulator_.finish();
  EXPECT_THAT(weight_.applied, ElementsAre(1, 1));
}

}  // namespace gradient_accumulator_waits_test
}  // namespace smp::server::test
