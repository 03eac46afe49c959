// Spans, busy time and the bubble.
#include "base/recorder.h"

#include <gtest/gtest.h>

namespace smp::base {
namespace {

// A clock that the test moves.
class ManualClock final : public Clock {
 public:
  Nanoseconds now() const noexcept override { return time; }
  Nanoseconds time = 0;
};

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

TEST(Recorder, RecordsNothingUnlessEnabled) {
  ManualClock clock;
  Recorder recorder(clock);
  recorder.begin(0, 1, Phase::kForward);
  recorder.end();
  EXPECT_TRUE(recorder.take().empty());
}

TEST(Recorder, KeepsWhatRanFromWhenToWhen) {
  ManualClock clock;
  Recorder recorder(clock);
  recorder.enable(true);
  clock.time = 10;
  recorder.begin(3, 7, Phase::kBackward);
  clock.time = 25;
  recorder.end();
  const std::vector<Span> spans = recorder.take();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].start, 10);
  EXPECT_EQ(spans[0].end, 25);
  EXPECT_GE(spans[0].cpu, 0);
  EXPECT_EQ(spans[0].microbatch, 3);
  EXPECT_EQ(spans[0].module, 7);
  EXPECT_EQ(spans[0].phase, Phase::kBackward);
  EXPECT_TRUE(recorder.take().empty());
}

TEST(Recorder, ClosesTheOpenSpanWhenAnotherBegins) {
  ManualClock clock;
  Recorder recorder(clock);
  recorder.enable(true);
  recorder.begin(0, 0, Phase::kForward);
  clock.time = 5;
  recorder.begin(1, 0, Phase::kForward);
  clock.time = 9;
  recorder.end();
  recorder.end();
  const std::vector<Span> spans = recorder.take();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].end, spans[1].start);
  EXPECT_EQ(spans[1].end, 9);
}

TEST(Recorder, ClosesAnOpenSpanAfterBeingSwitchedOff) {
  ManualClock clock;
  Recorder recorder(clock);
  recorder.enable(true);
  recorder.begin(0, 0, Phase::kForward);
  recorder.enable(false);
  clock.time = 4;
  recorder.end();
  EXPECT_EQ(recorder.take().size(), 1u);
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
}  // namespace smp::base
