// A trace arrives as it was, and by another clock with all of its times.
#include "api/step/trace_numbers.h"

#include <gtest/gtest.h>

#include "report/analysis/trace_file.h"

namespace smp {
namespace trace_numbers_test {

using schedule::Phase;
using schedule::RequestEvent;

/// All times are `later`.
schedule::StepTrace trace_of(base::Nanoseconds later) {
  schedule::StepTrace trace;
  trace.pp_rank = 2;
  trace.step = 7;
  trace.start = later + 100;
  trace.end = later + 200;
  trace.oversubscribed = true;
  trace.spans = {{later + 110, later + 120, 9, 0, 3, Phase::kForward},
                 {later + 130, later + 150, 18, 1, -1, Phase::kBackward}};
  trace.between = {{later + 50, later + 70, 5, -1, -1, Phase::kHost},
                   {later + 70, later + 100, 30, -1, -1, Phase::kOptimizer}};
  trace.requests = {{later + 112, 0, 5, RequestEvent::Kind::kBegun},
                    {later + 121, 0, 5, RequestEvent::Kind::kAnswered}};
  return trace;
}

/// Beside a rank that begins at 0, so that the file has all times as they are.
std::string text_of(const schedule::StepTrace& trace) {
  report::StepTimeline timeline;
  timeline.ranks = {{}, trace};
  return report::trace_to_json(timeline);
}

TEST(TraceNumbers, GiveTheTraceBack) {
  const auto trace = trace_of(0);
  EXPECT_EQ(text_of(to_trace(to_numbers(trace))), text_of(trace));
  EXPECT_EQ(text_of(to_trace(to_numbers({}))), text_of({}));
}

TEST(TraceNumbers, AllMoveWithTheClock) {
  EXPECT_EQ(text_of(moved_back(trace_of(1000), 1000)), text_of(trace_of(0)));
}

}  // namespace trace_numbers_test
}  // namespace smp
