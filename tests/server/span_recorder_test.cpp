// Spans, from when to when.
#include "server/span_recorder.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace smp::server
