// Why ranks had nothing to do.
#include "report/idle_time.h"

#include <gmock/gmock.h>

#include <array>

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

std::array<base::Nanoseconds, 7> parts(const RankTimes& times) {
  return {times.busy / kMs,      times.filling / kMs, times.draining / kMs,    times.for_work / kMs,
          times.transport / kMs, times.other / kMs,   times.without_core / kMs};
}

TEST(IdleTime, IsForWorkTransportOrNeither) {
  const auto timeline = two_ranks();
  const auto found = idle_time(timeline, arrows_of(timeline));
  ASSERT_EQ(found.ranks.size(), 2u);
  EXPECT_THAT(parts(found.ranks[0]), ElementsAre(20, 0, 10, 40, 5, 5, 0));
  // The request was sent before its gap, and came at its end.
  EXPECT_THAT(parts(found.ranks[1]), ElementsAre(33, 12, 30, 0, 5, 0, 0));
  ASSERT_EQ(found.awaited.size(), 2u);
  EXPECT_EQ(found.awaited[0].rank, 0u);
  EXPECT_EQ(found.awaited[0].awaited, 1u);
  EXPECT_EQ(found.awaited[0].work, "backward of b");
  EXPECT_EQ(found.awaited[0].time, 25 * kMs);
  EXPECT_EQ(found.awaited[1].work, "forward of a");
  EXPECT_EQ(found.awaited[1].time, 8 * kMs);
}

TEST(IdleTime, OfARankAddsUpToTheStep) {
  const auto timeline = two_ranks();
  for (const auto& times : idle_time(timeline, arrows_of(timeline)).ranks) {
    EXPECT_EQ(times.busy + times.filling + times.draining + times.for_work + times.transport +
                  times.other,
              80 * kMs);
  }
}

TEST(IdleTime, WithoutMessagesHasNoReason) {
  const auto timeline = two_ranks();
  const auto found = idle_time(timeline, {});
  EXPECT_THAT(parts(found.ranks[0]), ElementsAre(20, 0, 10, 0, 0, 50, 0));
  EXPECT_THAT(found.awaited, IsEmpty());
}

TEST(IdleTime, SaysHowLongARankHadNoCore) {
  auto timeline = two_ranks();
  timeline.ranks[0].oversubscribed = true;
  EXPECT_EQ(idle_time(timeline, {}).ranks[0].without_core, 10 * kMs);
}

TEST(IdleTime, OfARankThatDidNothingIsTheWholeStep) {
  auto timeline = two_ranks();
  timeline.ranks[1].spans.clear();
  EXPECT_THAT(parts(idle_time(timeline, {}).ranks[1]), ElementsAre(0, 80, 0, 0, 0, 0, 0));
  EXPECT_THAT(idle_time({}, {}).ranks, IsEmpty());
}

}  // namespace idle_time_test
}  // namespace smp::report
