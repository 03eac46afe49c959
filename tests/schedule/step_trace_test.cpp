// Busy time and the bubble.
#include "schedule/step_trace.h"

#include <gtest/gtest.h>

namespace smp::schedule {
namespace {

using base::Nanoseconds;

StepTrace rank(Nanoseconds start, Nanoseconds end, std::vector<Span> spans) {
  StepTrace trace;
  trace.start = start;
  trace.end = end;
  trace.spans = std::move(spans);
  return trace;
}

Span span(Nanoseconds start, Nanoseconds end, Nanoseconds cpu) {
  Span made;
  made.start = start;
  made.end = end;
  made.cpu = cpu;
  return made;
}

TEST(StepTrace, AddsUpWallAndProcessorTime) {
  const StepTrace trace = rank(0, 100, {span(0, 10, 8), span(20, 50, 25)});
  EXPECT_EQ(trace.busy_wall(), 40);
  EXPECT_EQ(trace.busy_cpu(), 33);
}

TEST(Bubble, IsTheIdleShareOfAllRanks) {
  EXPECT_DOUBLE_EQ(bubble({rank(0, 100, {span(0, 100, 90)}), rank(0, 100, {span(0, 50, 40)})}),
                   0.25);
}

TEST(Bubble, SpansFromTheFirstStartToTheLastEnd) {
  EXPECT_DOUBLE_EQ(bubble({rank(0, 50, {span(0, 50, 0)}), rank(50, 100, {span(50, 100, 0)})}), 0.5);
}

TEST(Bubble, CountsProcessorTimeWhereRanksOutnumberCores) {
  StepTrace first = rank(0, 100, {span(0, 100, 50)});
  StepTrace second = rank(0, 100, {span(0, 100, 30)});
  second.oversubscribed = true;
  EXPECT_DOUBLE_EQ(bubble({first, second}), 0.6);
}

TEST(Bubble, IsZeroWithoutTime) {
  EXPECT_EQ(bubble({}), 0);
  EXPECT_EQ(bubble({rank(5, 5, {})}), 0);
}

}  // namespace
}  // namespace smp::schedule
