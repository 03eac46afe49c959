// Times of a trace from several runs by the clock.
#include "trial/trace_median.h"

#include <gtest/gtest.h>

#include <vector>

namespace smp::partitioning {
namespace {

using simulate::ComputeInterval;
using simulate::Trace;

constexpr double kOperator = 3e-6;  // seconds

/// One call, with these times before it, of its own, and of the body after it.
Trace trace_of(double before, double own, double after) {
  Trace trace;
  trace.calls.emplace_back();
  trace.calls[0].before.seconds = before;
  trace.calls[0].after.seconds = own;
  trace.body_after.seconds = after;
  return trace;
}

TEST(TraceMedian, TakesTheMedianOfEachInterval) {
  const auto sizes = trace_of(kOperator, kOperator, kOperator);
  const auto traces =
      std::vector{trace_of(1, 20, 300), trace_of(2, 900, 100), trace_of(9, 10, 200)};
  const auto seen = with_median_times(sizes, traces);
  EXPECT_EQ(seen.calls[0].before.seconds, 2);
  EXPECT_EQ(seen.calls[0].after.seconds, 20);
  EXPECT_EQ(seen.body_after.seconds, 200);
  EXPECT_EQ(seen.source, simulate::CostSource::kMeasured);
}

TEST(TraceMedian, RunsThatTookAnotherWayDoNotCount) {
  auto other = trace_of(7, 7, 7);
  other.calls[0].module = 5;
  const auto sizes = trace_of(kOperator, kOperator, kOperator);
  EXPECT_EQ(with_median_times(sizes, {other, trace_of(1, 1, 1)}).calls[0].after.seconds, 1);
  const auto without = with_median_times(sizes, {other});
  EXPECT_EQ(without.calls[0].after.seconds, kOperator);
  EXPECT_NE(without.source, simulate::CostSource::kMeasured);
}

/// Only the forward is timed; by how much longer the backward takes is told by the operators.
TEST(TraceMedian, ABackwardIsAsManyTimesLongerAsItsOperatorsSay) {
  auto sizes = trace_of(kOperator, kOperator, 0);
  sizes.calls[0].before.backward_seconds = 3 * kOperator;
  sizes.calls[0].before.weight_seconds = kOperator;
  sizes.calls[0].after.backward_seconds = 0;
  sizes.body_after.backward_seconds = 0;
  const auto seen = with_median_times(sizes, {trace_of(10, 20, 30)});
  EXPECT_DOUBLE_EQ(seen.calls[0].before.backward_seconds, 30);
  EXPECT_DOUBLE_EQ(seen.calls[0].before.weight_seconds, 10);
  EXPECT_EQ(seen.calls[0].after.backward_seconds, 0) << "nothing wants a gradient";
  EXPECT_LT(seen.body_after.backward_seconds, 0) << "code without LibTorch: the ratio is left";
}

TEST(TraceMedian, WhatOnlyCallsTakeIsNoComputation) {
  const auto few = with_median_times(trace_of(0, kOperator, 0), {trace_of(50e-6, 50e-6, 99e-6)});
  EXPECT_EQ(few.calls[0].before.seconds, 0);
  EXPECT_EQ(few.calls[0].after.seconds, 50e-6);
  EXPECT_EQ(few.body_after.seconds, 0);
  // Code that computes without LibTorch.
  const auto many = with_median_times(trace_of(0, 0, 0), {trace_of(1e-3, 2e-3, 3e-3)});
  EXPECT_EQ(many.calls[0].before.seconds, 1e-3);
  EXPECT_EQ(many.calls[0].after.seconds, 2e-3);
  EXPECT_EQ(many.body_after.seconds, 3e-3);
  // What keeps something did run an operator.
  auto keeps = trace_of(0, 0, 0);
  keeps.calls[0].before.activation_bytes = 8;
  EXPECT_EQ(with_median_times(keeps, {trace_of(50e-6, 0, 0)}).calls[0].before.seconds, 50e-6);
}

}  // namespace
}  // namespace smp::partitioning
