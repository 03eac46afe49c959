// Spans, from when to when.
#include "server/running/span_recorder.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace smp::server {
namespace {

using schedule::Phase;
using schedule::Span;

// A clock that the test moves.
class ManualClock final : public base::Clock {
 public:
  base::Nanoseconds now() const noexcept override { return time; }
  base::Nanoseconds time = 0;
};

TEST(SpanRecorder, RecordsNothingUnlessEnabled) {
  ManualClock clock;
  SpanRecorder recorder(clock);
  recorder.begin(0, 1, Phase::kForward);
  recorder.end();
  EXPECT_TRUE(recorder.take().empty());
}

TEST(SpanRecorder, KeepsWhatRanFromWhenToWhen) {
  ManualClock clock;
  SpanRecorder recorder(clock);
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

TEST(SpanRecorder, ClosesTheOpenSpanWhenAnotherBegins) {
  ManualClock clock;
  SpanRecorder recorder(clock);
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

// Where it has a core of its own, short spans are not worth a question to the kernel.
TEST(SpanRecorder, TrustsThatAShortSpanHadItsCore) {
  constexpr base::Nanoseconds kLong = 30 * base::kMicrosecond;
  for (const bool shared : {false, true}) {
    SCOPED_TRACE(shared);
    ManualClock clock;
    SpanRecorder recorder(clock);
    recorder.shares_cores(shared);
    recorder.enable(true);
    recorder.begin(0, 0, Phase::kForward);
    const auto end = base::thread_cpu_time() + base::kMillisecond;
    while (base::thread_cpu_time() < end) {
    }
    clock.time = 5 * base::kMicrosecond;
    recorder.begin(0, 0, Phase::kForward);
    clock.time += kLong;
    recorder.end();
    const auto spans = recorder.take();
    ASSERT_EQ(spans.size(), 2u);
    if (shared) {
      EXPECT_GE(spans[0].cpu, base::kMillisecond);
    } else {
      EXPECT_EQ(spans[0].cpu, 5 * base::kMicrosecond);
      EXPECT_GE(spans[1].cpu, base::kMillisecond - 5 * base::kMicrosecond) << "the kernel is asked";
    }
  }
}

TEST(SpanRecorder, ClosesAnOpenSpanAfterBeingSwitchedOff) {
  ManualClock clock;
  SpanRecorder recorder(clock);
  recorder.enable(true);
  recorder.begin(0, 0, Phase::kForward);
  recorder.enable(false);
  clock.time = 4;
  recorder.end();
  EXPECT_EQ(recorder.take().size(), 1u);
}

// A step from `start` to `end` in which one module runs from `start` to `end` - 1.
schedule::StepTrace run_step(ManualClock& clock, SpanRecorder& recorder, base::Nanoseconds start,
                             base::Nanoseconds end) {
  clock.time = start;
  recorder.begin_step(1, start);
  recorder.begin(0, 0, Phase::kForward);
  clock.time = end - 1;
  recorder.end();
  clock.time = end;
  schedule::StepTrace trace;
  trace.end = end;
  recorder.end_step(trace);
  return trace;
}

TEST(SpanRecorder, KeepsWhatTheThreadDoesBetweenSteps) {
  ManualClock clock;
  SpanRecorder recorder(clock);
  recorder.enable(true);
  recorder.between(Phase::kHost);
  EXPECT_TRUE(run_step(clock, recorder, 100, 200).between.empty()) << "no step before";
  clock.time = 210;
  recorder.between(Phase::kHost);
  clock.time = 230;
  {
    const BetweenSteps optimizer(recorder, Phase::kOptimizer);
    clock.time = 270;
  }
  clock.time = 290;
  recorder.between(Phase::kOther);
  clock.time = 305;  // begin_step() may come a moment later than the step
  const auto trace = run_step(clock, recorder, 300, 400);
  EXPECT_EQ(trace.spans.size(), 1u);
  const std::vector<Span>& between = trace.between;
  ASSERT_EQ(between.size(), 5u);
  const Phase phases[] = {Phase::kOther, Phase::kHost, Phase::kOptimizer, Phase::kHost,
                          Phase::kOther};
  const base::Nanoseconds times[] = {200, 210, 230, 270, 290, 300};
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(between[i].phase, phases[i]);
    EXPECT_EQ(between[i].start, times[i]);
    EXPECT_EQ(between[i].end, times[i + 1]);
    EXPECT_EQ(between[i].microbatch, -1);
    EXPECT_EQ(between[i].module, -1);
  }
  EXPECT_EQ(run_step(clock, recorder, 500, 600).between.size(), 1u) << "of this gap only";
}

TEST(SpanRecorder, LooksAtNoClockBetweenStepsWhileOff) {
  class NoClock final : public base::Clock {
    base::Nanoseconds now() const noexcept override { std::abort(); }
  } clock;
  SpanRecorder recorder(clock);
  for (int step = 1; step <= 2; ++step) {
    recorder.begin_step(step, 0);
    schedule::StepTrace trace;
    recorder.end_step(trace);
    const BetweenSteps optimizer(recorder, Phase::kOptimizer);
    EXPECT_TRUE(trace.between.empty());
  }
}

TEST(SpanRecorder, KeepsNothingOfAStepThatFailed) {
  ManualClock clock;
  SpanRecorder recorder(clock);
  recorder.enable(true);
  run_step(clock, recorder, 100, 200);
  recorder.begin_step(2, 300);
  recorder.begin(0, 0, Phase::kForward);
  recorder.note(RequestKind::kAsked, PpRank(0), {});
  recorder.end();
  recorder.between(Phase::kHost);
  const auto trace = run_step(clock, recorder, 500, 600);
  EXPECT_EQ(trace.spans.size(), 1u);
  EXPECT_TRUE(trace.requests.empty());
  EXPECT_TRUE(trace.between.empty()) << "nobody knows when that step ended";
}

TEST(SpanRecorder, ForgetsTheTimeInWhichItWasOff) {
  ManualClock clock;
  SpanRecorder recorder(clock);
  recorder.enable(true);
  run_step(clock, recorder, 100, 200);
  recorder.enable(false);
  recorder.between(Phase::kOptimizer);
  recorder.enable(true);
  const auto trace = run_step(clock, recorder, 300, 400);
  EXPECT_EQ(trace.spans.size(), 1u);
  EXPECT_TRUE(trace.between.empty());
}

}  // namespace
}  // namespace smp::server
