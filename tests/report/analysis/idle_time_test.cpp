// Why ranks had nothing to do.
#include "report/analysis/idle_time.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <tuple>

namespace smp::report {
namespace idle_time_test {

using schedule::Phase;
using schedule::RequestEvent;
using schedule::Span;
using testing::ElementsAre;
using testing::IsEmpty;
using Kind = RequestEvent::Kind;

constexpr base::Nanoseconds kMs = base::kMillisecond;

Span span(int from, int to, int module, Phase phase = Phase::kForward) {
  return {(1000 + from) * kMs, (1000 + to) * kMs, (to - from) * kMs / 2, 0, module, phase};
}
RequestEvent event(int time, Kind kind) { return {(1000 + time) * kMs, 0, 7, kind}; }

/// Rank 0 works 0-10, asks rank 1 at 10, and goes on at 60 until 70 with an answer that was sent at
/// 50 and came at 55. Rank 1 works 12-20 for another, and 25-50 for that.
StepTimeline two_ranks() {
  StepTimeline timeline;
  timeline.ranks.resize(2);
  for (int rank = 0; rank < 2; ++rank) {
    timeline.ranks[rank].pp_rank = rank;
    timeline.ranks[rank].start = 1000 * kMs;
    timeline.ranks[rank].end = 1080 * kMs;
  }
  timeline.ranks[0].spans = {span(0, 10, -1), span(60, 70, -1)};
  timeline.ranks[1].spans = {span(12, 20, 0), span(25, 50, 1, Phase::kBackward)};
  timeline.ranks[0].requests = {event(10, Kind::kAsked), event(55, Kind::kReceived)};
  timeline.ranks[1].requests = {event(25, Kind::kBegun), event(50, Kind::kAnswered)};
  timeline.module_paths = {"a", "b"};
  return timeline;
}

std::array<base::Nanoseconds, 8> parts(const RankTimes& times) {
  return {times.busy / kMs,     times.filling / kMs,     times.draining / kMs,
          times.for_work / kMs, times.imbalance / kMs,   times.transport / kMs,
          times.other / kMs,    times.without_core / kMs};
}

TEST(IdleTime, IsForWorkTransportOrNeither) {
  const auto timeline = two_ranks();
  const auto found = idle_time(timeline, arrows_of(timeline));
  ASSERT_EQ(found.ranks.size(), 2u);
  // It waited for 40, of which 13 because the other has as much more to do.
  EXPECT_THAT(parts(found.ranks[0]), ElementsAre(20, 0, 10, 27, 13, 5, 5, 0));
  // The request was sent before its gap, and came at its end.
  EXPECT_THAT(parts(found.ranks[1]), ElementsAre(33, 12, 30, 0, 0, 5, 0, 0));
  ASSERT_EQ(found.awaited.size(), 2u);
  EXPECT_EQ(found.awaited[0].rank, 0u);
  EXPECT_EQ(found.awaited[0].awaited, 1u);
  EXPECT_EQ(found.awaited[0].work, "backward of b");
  EXPECT_EQ(found.awaited[0].time, 25 * kMs);
  EXPECT_EQ(found.awaited[1].work, "forward of a");
  EXPECT_EQ(found.awaited[1].time, 8 * kMs);
}

TEST(IdleTime, IsToldGapByGap) {
  using Gap = IdleGap::Kind;
  const auto timeline = two_ranks();
  const auto found = idle_time(timeline, arrows_of(timeline));
  const auto told = [&](std::size_t rank) {
    std::vector<std::tuple<Gap, base::Nanoseconds, base::Nanoseconds>> all;
    for (const auto& gap : found.gaps.at(rank)) {
      all.emplace_back(gap.kind, gap.time.start / kMs - 1000, gap.time.end / kMs - 1000);
    }
    return all;
  };
  EXPECT_THAT(told(0),
              ElementsAre(std::tuple(Gap::kForWork, 10, 50), std::tuple(Gap::kTransport, 50, 55),
                          std::tuple(Gap::kOther, 55, 60), std::tuple(Gap::kDraining, 70, 80)));
  EXPECT_THAT(told(1),
              ElementsAre(std::tuple(Gap::kFilling, 0, 12), std::tuple(Gap::kTransport, 20, 25),
                          std::tuple(Gap::kDraining, 50, 80)));
  EXPECT_EQ(found.gaps[0][0].awaited, 1u);
  EXPECT_EQ(found.gaps[0][0].work, "backward of b") << "25 ms, and 8 of the forward of a";
  EXPECT_EQ(found.gaps[1][1].awaited, 0u);
}

TEST(IdleTime, OfARankAddsUpToTheStep) {
  const auto timeline = two_ranks();
  for (const auto& times : idle_time(timeline, arrows_of(timeline)).ranks) {
    EXPECT_EQ(times.busy + times.filling + times.draining + times.for_work + times.imbalance +
                  times.transport + times.other,
              80 * kMs);
  }
}

TEST(IdleTime, WithoutMessagesHasNoReason) {
  const auto timeline = two_ranks();
  const auto found = idle_time(timeline, {});
  EXPECT_THAT(parts(found.ranks[0]), ElementsAre(20, 0, 0, 0, 10, 0, 50, 0));
  EXPECT_THAT(found.awaited, IsEmpty());
}

/// The step before ended at -40 on rank 0 and at -35 on rank 1, whose own step begins at -20. Rank
/// 0 is in the optimizer until -30, in the program until -5.
StepTimeline with_time_between() {
  auto timeline = two_ranks();
  timeline.ranks[0].between = {span(-40, -30, -1, Phase::kOptimizer),
                               span(-30, -5, -1, Phase::kHost), span(-5, 0, -1, Phase::kOther)};
  timeline.ranks[1].start = 980 * kMs;
  timeline.ranks[1].between = {span(-35, -30, -1, Phase::kOptimizer),
                               span(-28, -20, -1, Phase::kHost)};
  return timeline;
}

TEST(IdleTime, TellsWhatWasBetweenStepsFromFillingAndDraining) {
  const auto timeline = with_time_between();
  const auto found = idle_time(timeline, arrows_of(timeline));
  EXPECT_EQ(found.whole.start, 960 * kMs);
  EXPECT_EQ(found.whole.end, 1080 * kMs);
  const auto& first = found.ranks[0];
  EXPECT_EQ(first.optimizer, 10 * kMs);
  EXPECT_EQ(first.host, 25 * kMs);
  EXPECT_EQ(first.library, 5 * kMs);
  EXPECT_THAT(parts(first), ElementsAre(20, 0, 10, 27, 13, 5, 5, 0));
  const auto& second = found.ranks[1];
  EXPECT_EQ(second.optimizer, 5 * kMs);
  EXPECT_EQ(second.host, 8 * kMs);
  EXPECT_EQ(second.library, 0);
  // It was 5 ms later at the end of the step before, and nothing was recorded in 2.
  EXPECT_THAT(parts(second), ElementsAre(33, 32, 35, 0, 0, 5, 2, 0));
}

TEST(IdleTime, BetweenStepsAddsUpToo) {
  auto timeline = with_time_between();
  timeline.ranks.push_back(timeline.ranks[1]);
  timeline.ranks[2].between.clear();  // its record of that time is lost
  timeline.ranks.push_back(timeline.ranks[1]);
  timeline.ranks[3].spans.clear();
  for (const auto& times : idle_time(timeline, {}).ranks) {
    EXPECT_EQ(times.optimizer + times.host + times.library + times.busy + times.filling +
                  times.draining + times.for_work + times.imbalance + times.transport + times.other,
              120 * kMs);
  }
}

TEST(IdleTime, NamesWhatKeepsTheFirstRankFromItsStep) {
  auto timeline = with_time_between();
  timeline.ranks[1].requests = {event(12, Kind::kBegun), event(50, Kind::kAnswered)};
  const auto found = idle_time(timeline, arrows_of(timeline));
  // From -20 on rank 1 waited for a request that rank 0 sent at 10.
  ASSERT_GE(found.awaited.size(), 2u);
  const auto late = std::find_if(found.awaited.begin(), found.awaited.end(), [](const auto& one) {
    return one.work == "the program between steps";
  });
  ASSERT_NE(late, found.awaited.end());
  EXPECT_EQ(late->rank, 1u);
  EXPECT_EQ(late->awaited, 0u);
  EXPECT_EQ(late->time, 15 * kMs);
}

/// Rank 1 works 40 of 60 ms, rank 0 20: from 5 on, and in the end. In the 35 between it waits until
/// the answer leaves at 48 and comes at 50.
StepTimeline one_twice_as_busy() {
  StepTimeline timeline;
  timeline.ranks.resize(2);
  for (int rank = 0; rank < 2; ++rank) {
    timeline.ranks[rank].pp_rank = rank;
    timeline.ranks[rank].start = 1000 * kMs;
    timeline.ranks[rank].end = 1060 * kMs;
  }
  timeline.ranks[0].spans = {span(5, 15, -1), span(50, 60, -1)};
  timeline.ranks[1].spans = {span(8, 48, 0)};
  timeline.ranks[0].requests = {event(8, Kind::kAsked), event(50, Kind::kReceived)};
  timeline.ranks[1].requests = {event(8, Kind::kBegun), event(48, Kind::kAnswered)};
  return timeline;
}

TEST(IdleTime, ForWorkThatNoScheduleWouldSpareIsImbalance) {
  const auto timeline = one_twice_as_busy();
  const auto found = idle_time(timeline, arrows_of(timeline));
  EXPECT_THAT(parts(found.ranks[0]), ElementsAre(20, 5, 0, 13, 20, 2, 0, 0));
  EXPECT_THAT(parts(found.ranks[1]), ElementsAre(40, 8, 12, 0, 0, 0, 0, 0));
}

TEST(IdleTime, OfEqualRanksIsNoImbalance) {
  auto timeline = one_twice_as_busy();
  timeline.ranks[1].spans = {span(8, 28, 0)};
  for (const auto& times : idle_time(timeline, arrows_of(timeline)).ranks) {
    EXPECT_EQ(times.busy, 20 * kMs);
    EXPECT_EQ(times.imbalance, 0);
  }
}

/// Rank 1 works for 70 of 80 ms; rank 0 from 15 to 35 and from 36 to 50, and waits for work in the
/// 1 between.
TEST(IdleTime, ImbalanceBeyondWaitingForWorkIsOfFillingAndThenOfDraining) {
  auto timeline = one_twice_as_busy();
  for (auto& rank : timeline.ranks) rank.end = 1080 * kMs;
  timeline.ranks[0].spans = {span(15, 35, -1), span(36, 50, -1)};
  timeline.ranks[1].spans = {span(0, 70, 0)};
  timeline.ranks[0].requests = {event(20, Kind::kAsked), event(36, Kind::kReceived)};
  timeline.ranks[1].requests = {event(21, Kind::kBegun), event(36, Kind::kAnswered)};
  const auto arrows = arrows_of(timeline);
  // 36 less to do: 1 of the gap, 15 of the start, and 20 of the end's 30.
  EXPECT_THAT(parts(idle_time(timeline, arrows).ranks[0]), ElementsAre(34, 0, 10, 0, 36, 0, 0, 0));
  // Before the step rank 0 had drained for 100, which is no part of it.
  timeline.ranks[0].between = {span(0, 5, -1, Phase::kHost)};
  timeline.ranks[1].between = {span(-100, 0, -1, Phase::kHost)};
  timeline.ranks[1].spans = {span(0, 80, 0)};
  const auto times = idle_time(timeline, arrows).ranks[0];
  EXPECT_THAT(parts(times), ElementsAre(34, 0, 100, 0, 41, 0, 0, 0));
  EXPECT_EQ(times.host, 5 * kMs);
}

TEST(IdleTime, ImbalanceIsOfProcessorTimeWhereRanksOutnumberCores) {
  auto timeline = one_twice_as_busy();
  timeline.ranks[1].oversubscribed = true;
  const auto found = idle_time(timeline, arrows_of(timeline));
  // Processors ran for half of what the bars cover: 10 and 20.
  EXPECT_THAT(parts(found.ranks[0]), ElementsAre(20, 5, 0, 23, 10, 2, 0, 0));
}

TEST(IdleTime, SaysHowLongARankHadNoCore) {
  auto timeline = two_ranks();
  timeline.ranks[0].oversubscribed = true;
  EXPECT_EQ(idle_time(timeline, {}).ranks[0].without_core, 10 * kMs);
}

TEST(IdleTime, OfARankThatDidNothingIsTheWholeStep) {
  auto timeline = two_ranks();
  timeline.ranks[1].spans.clear();
  EXPECT_THAT(parts(idle_time(timeline, {}).ranks[1]), ElementsAre(0, 60, 0, 0, 20, 0, 0, 0));
  EXPECT_THAT(idle_time({}, {}).ranks, IsEmpty());
}

}  // namespace idle_time_test
}  // namespace smp::report
