// What the page of a step holds, and the same step for other viewers.
#include "report/pictures/timeline_page.h"

#include <gmock/gmock.h>

#include "config/json.h"
#include "report/export/chrome_trace.h"

namespace smp::report {
namespace timeline_page_test {

using schedule::Phase;
using schedule::Span;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr base::Nanoseconds kMs = base::kMillisecond;

Span span(int from, int to, int microbatch, Phase phase, int module) {
  return {(1000 + from) * kMs, (1000 + to) * kMs, (to - from) * kMs / 2, microbatch, module, phase};
}

/// 100 ms on two ranks; rank 1 begins late and ends early.
StepTimeline two_ranks() {
  StepTimeline timeline;
  timeline.ranks.resize(2);
  for (int rank = 0; rank < 2; ++rank) {
    timeline.ranks[rank].pp_rank = rank;
    timeline.ranks[rank].step = 7;
    timeline.ranks[rank].start = 1000 * kMs;
    timeline.ranks[rank].end = 1100 * kMs;
  }
  timeline.ranks[0].spans = {span(0, 10, 0, Phase::kForward, -1),
                             span(70, 100, 0, Phase::kBackward, 0)};
  timeline.ranks[1].spans = {span(15, 30, 0, Phase::kForward, 1),
                             span(40, 60, 0, Phase::kBackward, 1)};
  timeline.module_paths = {"", "decoder.</script>"};
  return timeline;
}

/// Rank 0 asks at 8 ms for what rank 1 begins at 15, and has the answer 5 ms after it left.
StepTimeline with_a_request() {
  using Kind = schedule::RequestEvent::Kind;
  auto timeline = two_ranks();
  timeline.ranks[0].requests = {{1008 * kMs, 0, 5, Kind::kAsked},
                                {1065 * kMs, 0, 5, Kind::kReceived}};
  timeline.ranks[1].requests = {{1015 * kMs, 0, 5, Kind::kBegun},
                                {1060 * kMs, 0, 5, Kind::kAnswered}};
  return timeline;
}

TEST(TimelinePage, SaysWhereTheTimeOfEachRankWent) {
  const auto page = draw_timeline_page(with_a_request());
  EXPECT_THAT(page, AllOf(HasSubstr("waiting for work of others"), HasSubstr("which did"),
                          HasSubstr("backward of decoder.&lt;/script&gt;")));
  EXPECT_THAT(page, Not(HasSubstr("without a core"))) << "every rank had one";
  EXPECT_THAT(draw_timeline_page(two_ranks()), Not(HasSubstr("which did")));
}

TEST(TimelinePage, IsOneFile) {
  const auto page = draw_timeline_page(two_ranks());
  EXPECT_THAT(page,
              AllOf(HasSubstr("<h1>Step 7: 100.00 ms on 2 ranks, bubble 62.5 %</h1>"),
                    HasSubstr("showTimeline(document"), HasSubstr("35.00 ms (35.0 %)"),
                    HasSubstr("decoder.\\u003c/script>"), Not(HasSubstr("decoder.</script>"))));
}

TEST(TimelinePage, TellsIdleTimeBecauseOfImbalance) {
  // Rank 0 is busy for 40 ms, rank 1 for 35, and begins at 15.
  EXPECT_THAT(draw_timeline_page(two_ranks()),
              AllOf(HasSubstr("idle as others have more to do"),
                    HasSubstr("<td>10.00 ms (10.0 %)</td><td>5.00 ms (5.0 %)</td>")));
  auto timeline = two_ranks();
  timeline.ranks[0].spans.back().start += 5 * kMs;
  EXPECT_THAT(draw_timeline_page(timeline), Not(HasSubstr("others have more")));
}

TEST(TimelinePage, HoldsItsBubbleAgainstOthers) {
  const char* const measured = "<th>measured</th><td>62.5 %</td>";
  const char* const ideal = "<th>of equal stages without any delay</th><td>50.0 %</td>";
  EXPECT_THAT(
      draw_timeline_page(two_ranks(), 0.4321),
      AllOf(HasSubstr(measured), HasSubstr("<th>simulated</th><td>43.2 %</td>"), HasSubstr(ideal)));
  EXPECT_THAT(draw_timeline_page(two_ranks()),
              AllOf(HasSubstr(measured), HasSubstr(ideal), Not(HasSubstr("<th>simulated"))));
  auto timeline = two_ranks();
  timeline.simulated = true;
  EXPECT_THAT(draw_timeline_page(timeline), AllOf(HasSubstr("<th>simulated</th><td>62.5 %</td>"),
                                                  HasSubstr(ideal), Not(HasSubstr("measured"))));
}

TEST(TimelinePage, OfASimulationSaysSo) {
  auto timeline = two_ranks();
  timeline.simulated = true;
  EXPECT_THAT(draw_timeline_page(timeline),
              AllOf(HasSubstr("Simulated step: 100.00 ms on 2 stages"), HasSubstr("stage 1")));
}

TEST(TimelinePage, SaysWhatTheStepConsistsOf) {
  EXPECT_THAT(draw_timeline_page(two_ranks()), Not(HasSubstr("critical path")))
      << "nobody knows without messages";
  const auto page = draw_timeline_page(with_a_request());
  EXPECT_THAT(page, AllOf(HasSubstr("<th>backward of the model</th><td>30.00 ms (30.0 %)</td>"),
                          HasSubstr("could go on</th><td>17.00 ms (17.0 %)</td>"),
                          HasSubstr("\"arrows\":[[0,8000000,1,15000000]")));
}

StepTimeline with_time_between() {
  auto timeline = two_ranks();
  timeline.ranks[0].between = {span(-25, -5, -1, Phase::kHost, -1),
                               span(-5, 0, -1, Phase::kOptimizer, -1)};
  return timeline;
}

TEST(TimelinePage, SaysWhatRanksDidBeforeTheStep) {
  const auto page = draw_timeline_page(with_time_between());
  EXPECT_THAT(page,
              AllOf(HasSubstr("host: the program between steps"), HasSubstr("20.00 ms (16.0 %)"),
                    HasSubstr("<h1>Step 7: 100.00 ms"), HasSubstr("Shares are of 125.00 ms"),
                    HasSubstr("\"between\":[[-25000000,-5000000,10000000,-1,-1,5],")));
  EXPECT_THAT(
      draw_timeline_page(two_ranks()),
      AllOf(Not(HasSubstr("host:")), Not(HasSubstr("Before 0")), Not(HasSubstr("Shares are of"))));
}

/// Rank 0 is in its program for 6 ms of the step, which begins on rank 1, and gets ready in
/// another.
TEST(TimelinePage, NamesTheProgramOnTheCriticalPath) {
  auto timeline = with_a_request();
  timeline.ranks[0].start = 1006 * kMs;
  timeline.ranks[0].spans[0] = span(7, 10, 0, Phase::kForward, -1);
  timeline.ranks[0].between = {span(-25, 6, -1, Phase::kHost, -1)};
  EXPECT_THAT(draw_timeline_page(timeline),
              AllOf(HasSubstr("<th>the program between steps</th><td>6.00 ms (6.0 %)</td>"),
                    HasSubstr("<th>all else</th><td>11.00 ms (11.0 %)</td>")));
}

TEST(ChromeTrace, BeginsWithTheTimeBeforeTheStep) {
  const auto json = base::parse_json(to_chrome_trace(with_time_between()), "trace");
  const auto& events = json["traceEvents"];
  ASSERT_EQ(events.size(), 8u);
  EXPECT_EQ(events[1]["name"], "the program between steps");
  EXPECT_EQ(events[1]["cat"], "host");
  EXPECT_EQ(events[1]["ts"], 0);
  EXPECT_EQ(events[3]["name"], "the step body");
  EXPECT_EQ(events[3]["ts"], 25'000);
}

TEST(ChromeTrace, HasAFlowAMessage) {
  const auto json = base::parse_json(to_chrome_trace(with_a_request()), "trace");
  const auto& events = json["traceEvents"];
  ASSERT_EQ(events.size(), 10u);
  EXPECT_EQ(events[6]["ph"], "s");
  EXPECT_EQ(events[6]["pid"], 0);
  EXPECT_EQ(events[6]["ts"], 8'000);
  EXPECT_EQ(events[7]["ph"], "f");
  EXPECT_EQ(events[7]["pid"], 1);
  EXPECT_EQ(events[7]["ts"], 15'000);
  EXPECT_EQ(events[7]["bp"], "e");
  EXPECT_EQ(events[6]["id"], events[7]["id"]);
  EXPECT_NE(events[8]["id"], events[7]["id"]);
  EXPECT_FALSE(events[9].contains("bp")) << "an answer belongs to what runs next";
}

TEST(ChromeTrace, HasAnEventASpan) {
  const auto json = base::parse_json(to_chrome_trace(two_ranks()), "trace");
  const auto& events = json["traceEvents"];
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[0]["args"]["name"], "rank 0");
  EXPECT_EQ(events[1]["name"], "the step body");
  EXPECT_EQ(events[2]["name"], "the model");
  const auto& last = events[5];
  EXPECT_EQ(last["ph"], "X");
  EXPECT_EQ(last["pid"], 1);
  EXPECT_EQ(last["name"], "decoder.</script>");
  EXPECT_EQ(last["cat"], "backward");
  EXPECT_EQ(last["ts"], 40'000);
  EXPECT_EQ(last["dur"], 20'000);
  EXPECT_EQ(last["args"]["microbatch"], 0);
  EXPECT_EQ(last["args"]["processor_us"], 10'000);
  EXPECT_TRUE(base::parse_json(to_chrome_trace({}), "trace")["traceEvents"].empty());
}

}  // namespace timeline_page_test
}  // namespace smp::report
