// What the picture of a step shows: lanes that add up, phases told apart, idle time, sums.
#include "report/pictures/timeline.h"

#include <gmock/gmock.h>

#include <cmath>

#include "report/analysis/trace_file.h"
#include "report/svg_reader.h"
#include "support/refusal.h"

namespace smp::report {
namespace {

using schedule::Phase;
using schedule::Span;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr base::Nanoseconds kMs = base::kMillisecond;

schedule::StepTrace rank(int pp_rank, std::vector<Span> spans) {
  schedule::StepTrace trace;
  trace.pp_rank = pp_rank;
  trace.step = 7;
  trace.start = 1000 * kMs;
  trace.end = 1100 * kMs;
  trace.spans = std::move(spans);
  return trace;
}

Span span(int from, int to, int microbatch, Phase phase, int module = 0) {
  return {(1000 + from) * kMs, (1000 + to) * kMs, (to - from) * kMs / 2, microbatch, module, phase};
}

// Two ranks, two microbatches, 100 ms; rank 0 is busy for 50 ms, rank 1 for 40.
StepTimeline two_ranks() {
  StepTimeline timeline;
  timeline.ranks = {
      rank(0, {span(0, 10, 0, Phase::kForward), span(10, 20, 1, Phase::kForward),
               span(60, 75, 0, Phase::kBackward), span(80, 95, 1, Phase::kBackward)}),
      rank(1, {span(10, 30, 0, Phase::kForward, 1), span(30, 50, 0, Phase::kBackward, 1)})};
  timeline.module_paths = {"encoder", "decoder.block.0"};
  return timeline;
}

TEST(Timeline, HasALanePerRankAndABarPerSpan) {
  const std::string svg = draw_timeline(two_ranks());
  EXPECT_EQ(elements(svg, "rect", "lane").size(), 2u);
  EXPECT_EQ(elements(svg, "rect", "forward").size(), 3u);
  EXPECT_EQ(elements(svg, "rect", "backward").size(), 3u);
}

TEST(Timeline, BarsOfALaneAddUpToItsBusyTime) {
  const StepTimeline timeline = two_ranks();
  const std::string svg = draw_timeline(timeline);
  const auto lanes = elements(svg, "rect", "lane");
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    double drawn = 0;
    for (const char* phase : {"forward", "backward"}) {
      for (const std::string& bar : elements(svg, "rect", phase)) {
        if (number(bar, "y") == number(lanes[i], "y")) drawn += number(bar, "width");
      }
    }
    const double busy = static_cast<double>(timeline.ranks[i].busy_wall()) / (100 * kMs);
    EXPECT_NEAR(drawn / number(lanes[i], "width"), busy, 1e-4);
  }
  EXPECT_THAT(texts(svg, "busy"), ElementsAre("50.0 ms  (50.0 %)", "40.0 ms  (40.0 %)"));
}

TEST(Timeline, SaysStepLengthAndBubbleInTheTitle) {
  EXPECT_THAT(draw_timeline(two_ranks()),
              HasSubstr("Step 7: 100 ms on 2 ranks, 2 microbatches, bubble 55.0 %"));
}

TEST(Timeline, ColorsMicrobatchesApartAndPhasesLightAndDark) {
  const std::string svg = draw_timeline(two_ranks());
  const auto forward = elements(svg, "rect", "forward");
  const auto backward = elements(svg, "rect", "backward");
  const auto fill = [](const std::string& tag) { return tag.substr(tag.find("fill="), 14); };
  EXPECT_NE(fill(forward[0]), fill(forward[1]));
  EXPECT_EQ(fill(forward[0]), fill(forward[2]));
  EXPECT_NE(fill(forward[0]), fill(backward[0]));
}

TEST(Timeline, NamesModulesUnderTheMouse) {
  StepTimeline timeline = two_ranks();
  timeline.ranks[0].spans[0].module = -1;
  timeline.ranks[0].spans[1].module = 99;
  const std::string svg = draw_timeline(timeline);
  EXPECT_THAT(
      svg,
      HasSubstr(
          "<title>backward of decoder.block.0, microbatch 0: 20.0 ms, processor 10.0 ms</title>"));
  EXPECT_THAT(svg, HasSubstr("forward of the step body, microbatch 0"));
  EXPECT_THAT(svg, HasSubstr("forward of module 99"));
}

// Rank 0 asks rank 1 at 20 and goes on at 60, with an answer that was sent at 50 and came at 55.
TEST(Timeline, TellsWhyARankIsIdle) {
  auto timeline = two_ranks();
  const auto event = [](int time, schedule::RequestEvent::Kind kind) {
    return schedule::RequestEvent{(1000 + time) * kMs, 0, 7, kind};
  };
  using Kind = schedule::RequestEvent::Kind;
  timeline.ranks[0].requests = {event(20, Kind::kAsked), event(55, Kind::kReceived)};
  timeline.ranks[1].requests = {event(30, Kind::kBegun), event(50, Kind::kAnswered)};
  const std::string svg = draw_timeline(timeline);
  const auto lane = number(elements(svg, "rect", "lane")[0], "width");  // 100 ms
  const auto shares = [&](const char* kind) {
    std::vector<double> found;
    for (const auto& gap : elements(svg, "rect", kind)) {
      found.push_back(std::round(100 * number(gap, "width") / lane));
    }
    return found;
  };
  EXPECT_THAT(shares("idle-work"), ElementsAre(30));
  EXPECT_THAT(shares("idle-transport"), ElementsAre(5));
  EXPECT_THAT(shares("idle-fill"), ElementsAre(5, 10, 50)) << "rank 0 drains, rank 1 fills, drains";
  EXPECT_THAT(shares("idle"), ElementsAre(5, 5)) << "before it goes on, between its backwards";
  EXPECT_THAT(svg, HasSubstr("waits for rank 1, backward of decoder.block.0: 30.0 ms"));
  EXPECT_THAT(svg, HasSubstr("waits for what rank 1 has sent: 5.00 ms"));
  EXPECT_THAT(svg, HasSubstr(">waits for work of another rank<"));
}

TEST(Timeline, WarnsWhereRanksOutnumberCores) {
  StepTimeline timeline = two_ranks();
  EXPECT_TRUE(texts(draw_timeline(timeline), "oversubscribed").empty());
  timeline.ranks[1].oversubscribed = true;
  const std::string svg = draw_timeline(timeline);
  EXPECT_EQ(texts(svg, "oversubscribed").size(), 1u);
  EXPECT_THAT(texts(svg, "processor"), ElementsAre("processor 25.0 ms", "processor 20.0 ms"));
  EXPECT_THAT(svg, HasSubstr("bubble 77.5 %"));
}

TEST(Timeline, DrawsTimeOutsideOfMicrobatchesInGrey) {
  StepTimeline timeline = two_ranks();
  timeline.ranks[0].spans = {span(0, 10, -1, Phase::kOptimizer)};
  const auto bars = elements(draw_timeline(timeline), "rect", "optimizer");
  ASSERT_EQ(bars.size(), 1u);
  EXPECT_THAT(bars[0], HasSubstr("#9a9a9a"));
}

TEST(Timeline, DrawsAStepWithoutSpansOrRanks) {
  EXPECT_THAT(draw_timeline({}), HasSubstr("on 0 ranks"));
  StepTimeline idle;
  idle.ranks = {rank(0, {})};
  EXPECT_THAT(draw_timeline(idle), HasSubstr("bubble 100.0 %"));
}

TEST(Timeline, SaysThatItWasSimulated) {
  StepTimeline timeline = two_ranks();
  EXPECT_THAT(draw_timeline(timeline), Not(HasSubstr("imulated")));
  timeline.simulated = true;
  const std::string svg = draw_timeline(timeline);
  EXPECT_THAT(svg, HasSubstr("Simulated step: 100 ms on 2 stages, 2 microbatches, bubble 55.0 %"));
  EXPECT_THAT(svg, HasSubstr("predicted from the plan, not measured"));
  EXPECT_THAT(svg, HasSubstr(">stage 1<"));
  EXPECT_THAT(svg, Not(HasSubstr("waits for"))) << "nothing is known of messages";
  EXPECT_THAT(svg, HasSubstr(">idle<"));
  EXPECT_THAT(svg, Not(HasSubstr("processor")));
  EXPECT_TRUE(trace_from_json(trace_to_json(timeline), "t.json").simulated);
  EXPECT_FALSE(trace_from_json(trace_to_json(two_ranks()), "t.json").simulated);
}

schedule::RequestEvent event(int time, int request, schedule::RequestEvent::Kind kind) {
  return {(1000 + time) * kMs, 0, request, kind};
}

TEST(Timeline, DrawsRequestsAnswersAndTheCriticalPath) {
  using Kind = schedule::RequestEvent::Kind;
  auto timeline = two_ranks();
  const auto plain = draw_timeline(timeline);
  EXPECT_TRUE(elements(plain, "polyline", "critical").empty()) << "no message was recorded";
  EXPECT_THAT(plain, Not(HasSubstr("critical path")));
  timeline.ranks[0].requests = {event(8, 1, Kind::kAsked), event(58, 1, Kind::kReceived)};
  timeline.ranks[1].requests = {event(10, 1, Kind::kBegun), event(50, 1, Kind::kAnswered)};
  const auto svg = draw_timeline(timeline);
  const auto lane = elements(svg, "rect", "lane");
  const auto at = [&](int ms) {
    return number(lane[0], "x") + ms / 100.0 * number(lane[0], "width");
  };
  const auto request = elements(svg, "line", "request");
  ASSERT_EQ(request.size(), 1u);
  EXPECT_NEAR(number(request[0], "x1"), at(8), 0.01);
  EXPECT_NEAR(number(request[0], "x2"), at(10), 0.01);
  EXPECT_NEAR(number(request[0], "y1"), number(lane[0], "y") + number(lane[0], "height"), 0.01);
  EXPECT_NEAR(number(request[0], "y2"), number(lane[1], "y"), 0.01);
  const auto answer = elements(svg, "line", "answer");
  ASSERT_EQ(answer.size(), 1u);
  EXPECT_NEAR(number(answer[0], "x1"), at(50), 0.01);
  EXPECT_NEAR(number(answer[0], "y1"), number(lane[1], "y"), 0.01);
  EXPECT_NEAR(number(answer[0], "y2"), number(lane[0], "y") + number(lane[0], "height"), 0.01);
  ASSERT_EQ(elements(svg, "polyline", "critical").size(), 1u);
  EXPECT_THAT(svg, HasSubstr("critical path"));
  for (int i = 2; i < 302; ++i) {
    timeline.ranks[0].requests.push_back(event(8, i, Kind::kAsked));
    timeline.ranks[1].requests.push_back(event(10, i, Kind::kBegun));
  }
  const auto crowded = draw_timeline(timeline);
  EXPECT_TRUE(elements(crowded, "line", "request").empty());
  EXPECT_EQ(elements(crowded, "polyline", "critical").size(), 1u);
}

TEST(Timeline, JoinsBarsThatAreTooShortToBeSeen) {
  StepTimeline timeline;
  timeline.ranks = {rank(0, {})};
  for (int i = 0; i < 10'000; ++i) {
    const base::Nanoseconds start = 1000 * kMs + i * 10'000;
    timeline.ranks[0].spans.push_back(
        {start, start + 10'000, 10'000, i / 5000, 0, Phase::kForward});
  }
  const std::string svg = draw_timeline(timeline);
  const auto bars = elements(svg, "rect", "forward");
  ASSERT_EQ(bars.size(), 2u);
  EXPECT_NEAR(number(bars[0], "width"), number(bars[1], "width"), 0.1);
  EXPECT_THAT(svg, HasSubstr("and 4999 more intervals, microbatch 1: 50.0 ms"));
}

TEST(Timeline, CountsLongStepsInSeconds) {
  StepTimeline timeline;
  timeline.ranks = {rank(0, {span(0, 10'000, 0, Phase::kForward)})};
  const std::string svg = draw_timeline(timeline);
  EXPECT_THAT(svg, HasSubstr("Step 7: 10.0 s on 1 rank"));
  EXPECT_THAT(svg, HasSubstr("start of the step, s<"));
}

/// 30 ms before the step on rank 0, 20 on rank 1.
StepTimeline with_time_before_it(int host_since = -30) {
  StepTimeline timeline = two_ranks();
  timeline.ranks[0].between = {span(host_since, -10, -1, Phase::kHost, -1),
                               span(-10, -2, -1, Phase::kOptimizer, -1),
                               span(-2, 0, -1, Phase::kOther, -1)};
  timeline.ranks[1].between = {span(-20, 0, -1, Phase::kHost, -1)};
  return timeline;
}

TEST(Timeline, DrawsWhatRanksDidBeforeTheStep) {
  const std::string svg = draw_timeline(with_time_before_it());
  const auto lane = elements(svg, "rect", "lane").at(0);
  const auto hosts = elements(svg, "rect", "host");
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_NEAR(number(hosts[0], "x"), number(lane, "x"), 0.1);
  EXPECT_NEAR(number(hosts[0], "width") / number(lane, "width"), 20 / 130.0, 1e-3);
  EXPECT_EQ(elements(svg, "rect", "optimizer").size(), 1u);
  EXPECT_EQ(elements(svg, "rect", "smp").size(), 1u);
  EXPECT_THAT(svg, AllOf(HasSubstr("<title>optimizer.step(): 8.00 ms, processor 4.00 ms</title>"),
                         HasSubstr("before 0: since the end of the step before<"),
                         HasSubstr(">the program between steps<"), HasSubstr(">-20<")));
}

TEST(Timeline, CountsOnlyTheStepItself) {
  const std::string svg = draw_timeline(with_time_before_it());
  EXPECT_THAT(svg, HasSubstr("Step 7: 100 ms on 2 ranks, 2 microbatches, bubble 55.0 %"));
  EXPECT_THAT(texts(svg, "busy"), ElementsAre("50.0 ms  (50.0 %)", "40.0 ms  (40.0 %)"));
  EXPECT_THAT(draw_timeline(two_ranks()), AllOf(Not(HasSubstr("before 0")), Not(HasSubstr("host")),
                                                Not(HasSubstr("between steps"))));
}

TEST(Timeline, ShowsNoMoreOfTheTimeBeforeThanTheStepIsLong) {
  const std::string svg = draw_timeline(with_time_before_it(-5000));
  const auto lane = elements(svg, "rect", "lane").at(0);
  const auto host = elements(svg, "rect", "host").at(0);
  EXPECT_NEAR(number(host, "x"), number(lane, "x"), 0.1);
  EXPECT_NEAR(number(host, "width") / number(lane, "width"), 90 / 200.0, 1e-3);
  EXPECT_THAT(svg, AllOf(HasSubstr("before, 5000 ms, cut off"),
                         HasSubstr("<title>the program between steps: 4990 ms")));
}

TEST(TraceFile, KeepsWhatWasBetweenSteps) {
  const auto timeline = with_time_before_it();
  const std::string text = trace_to_json(timeline);
  const auto back = trace_from_json(text, "trace.json");
  ASSERT_EQ(back.ranks[0].between.size(), 3u);
  EXPECT_EQ(back.ranks[0].between[0].start, -30 * kMs);
  EXPECT_EQ(trace_to_json(back), text);
  EXPECT_EQ(draw_timeline(back), draw_timeline(timeline));
  EXPECT_THAT(trace_to_json(two_ranks()), Not(HasSubstr("between"))) << "as older builds wrote it";
}

TEST(TraceFile, KeepsEverythingButTheOriginOfTime) {
  StepTimeline timeline = two_ranks();
  timeline.ranks[1].oversubscribed = true;
  const std::string text = trace_to_json(timeline);
  const StepTimeline back = trace_from_json(text, "trace.json");
  EXPECT_EQ(back.ranks[0].start, 0);
  EXPECT_EQ(back.ranks[1].spans[1].end, 50 * kMs);
  EXPECT_EQ(trace_to_json(back), text);
  EXPECT_EQ(draw_timeline(back), draw_timeline(timeline));
}

TEST(TraceFile, IsRefusedWithAReason) {
  const auto refusal_of = [](const std::string& text) {
    return refusal([&] { trace_from_json(text, "t.json"); });
  };
  EXPECT_THAT(refusal_of("{}"), HasSubstr("t.json: \"format\" is missing"));
  EXPECT_THAT(refusal_of(R"({"format": "smp-plan"})"), HasSubstr("this is not a trace"));
  EXPECT_THAT(refusal_of(R"({"format": "smp-trace", "version": 9})"), HasSubstr("version 9"));
  EXPECT_THAT(refusal_of(R"({"format": "smp-trace", "version": 1, "modules": [], "ranks": [
      {"pp_rank": 0, "step": 1, "start": 0, "end": 1, "oversubscribed": false, "spans": [[1, 2]]}]})"),
              HasSubstr("a span must be 6 integers, found [1,2]"));
  EXPECT_THAT(refusal_of(R"({"format": "smp-trace", "version": 1, "modules": [], "ranks": [
      {"pp_rank": 0, "step": 1, "start": 0, "end": 1, "oversubscribed": false, "spans": [],
       "between": [[-2, -1, 1, -1, -1, 6]]}]})"),
              HasSubstr("6 is no phase of a span"));
}

}  // namespace
}  // namespace smp::report
