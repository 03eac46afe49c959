// Who waited for whom in a step, and the chain of work and messages that ends last.
#include "report/analysis/critical_path.h"

#include <gmock/gmock.h>

#include <numeric>
#include <tuple>

#include "report/analysis/trace_file.h"

namespace smp::report {
namespace critical_path_test {

using schedule::Phase;
using schedule::RequestEvent;
using schedule::Span;
using testing::ElementsAre;
using testing::IsEmpty;
using Kind = RequestEvent::Kind;
using Part = PathPart::Kind;

constexpr base::Nanoseconds kMs = base::kMillisecond;

Span span(int from, int to, int module) {
  return {(1000 + from) * kMs, (1000 + to) * kMs, 0, 0, module, Phase::kForward};
}
RequestEvent event(int time, int caller, int request, Kind kind) {
  return {(1000 + time) * kMs, caller, request, kind};
}

/// Rank 0 works 0-10, asks rank 1 at 9, works 20-25 and 70-80. Rank 1 begins at 12, asks rank 2 at
/// 20, goes on at 55 and answers at 65. Rank 2 works 30-50 of its 26-50.
StepTimeline three_ranks() {
  StepTimeline timeline;
  timeline.ranks.resize(3);
  for (int rank = 0; rank < 3; ++rank) {
    timeline.ranks[rank].pp_rank = rank;
    timeline.ranks[rank].start = 1000 * kMs;
    timeline.ranks[rank].end = 1090 * kMs;
  }
  timeline.ranks[0].spans = {span(0, 10, 0), span(20, 25, 0), span(70, 80, 0)};
  timeline.ranks[1].spans = {span(12, 22, 1), span(55, 65, 1)};
  timeline.ranks[2].spans = {span(26, 50, 2)};
  timeline.ranks[0].requests = {event(9, 0, 7, Kind::kAsked), event(68, 0, 7, Kind::kReceived)};
  timeline.ranks[1].requests = {event(12, 0, 7, Kind::kBegun), event(20, 1, 7, Kind::kAsked),
                                event(54, 1, 7, Kind::kReceived), event(65, 0, 7, Kind::kAnswered)};
  timeline.ranks[2].requests = {event(26, 1, 7, Kind::kBegun), event(50, 1, 7, Kind::kAnswered)};
  timeline.module_paths = {"a", "b", "c"};
  return timeline;
}

using Row = std::tuple<std::size_t, std::size_t, int, int>;

std::vector<Row> rows_of(const std::vector<Arrow>& arrows) {
  std::vector<Row> rows;
  for (const auto& arrow : arrows) {
    rows.emplace_back(arrow.from, arrow.to, static_cast<int>(arrow.start / kMs) - 1000,
                      static_cast<int>(arrow.end / kMs) - 1000);
  }
  return rows;
}

TEST(StepArrows, LeadFromWhoSentToWhoCouldGoOn) {
  EXPECT_THAT(rows_of(arrows_of(three_ranks())), ElementsAre(Row{0, 1, 9, 12}, Row{1, 2, 20, 26},
                                                             Row{2, 1, 50, 54}, Row{1, 0, 65, 68}));
}

TEST(StepArrows, ATensorOfAnotherRankIsACauseToo) {
  auto timeline = three_ranks();
  timeline.ranks[2].requests.push_back(event(51, 0, 7, Kind::kPassedOn));
  timeline.ranks[2].requests.push_back(event(52, 0, 8, Kind::kPassedOn));  // was never run
  timeline.ranks[1].requests[0].time = 1055 * kMs;
  EXPECT_THAT(rows_of(arrows_of(timeline)),
              ElementsAre(Row{1, 2, 20, 26}, Row{2, 1, 50, 54}, Row{0, 1, 9, 55}, Row{2, 1, 51, 55},
                          Row{1, 0, 65, 68}));
}

/// Rank 1's request 7 has run on rank 2, and what it made went on to rank 1's next request unasked.
TEST(StepArrows, ATensorThatCameUnaskedIsACauseFromWhoMadeIt) {
  auto timeline = three_ranks();
  auto& events = timeline.ranks[1].requests;
  events.push_back(event(70, 0, 9, Kind::kBegun));
  events.push_back(event(70, 1, 7, Kind::kTook));
  events.push_back(event(70, 1, 77, Kind::kTook));  // of another step
  EXPECT_THAT(rows_of(arrows_of(timeline)),
              ElementsAre(Row{0, 1, 9, 12}, Row{1, 2, 20, 26}, Row{2, 1, 50, 54}, Row{1, 0, 65, 68},
                          Row{2, 1, 50, 70}));
}

TEST(StepArrows, SurviveTheTraceFile) {
  auto timeline = three_ranks();
  timeline.ranks[2].requests.push_back(event(79, 1, 77, Kind::kTook));
  const auto read = trace_from_json(trace_to_json(timeline), "trace.json");
  EXPECT_EQ(read.ranks[2].requests.back().kind, Kind::kTook);
  EXPECT_EQ(read.ranks[1].requests.size(), 4u);
  EXPECT_EQ(arrows_of(read).size(), 4u);
  EXPECT_EQ(arrows_of(read)[1].end, 26 * kMs) << "since the start of the step";
}

TEST(CriticalPath, FollowsMessagesBackToTheStart) {
  const auto timeline = three_ranks();
  const auto path = critical_path(timeline, arrows_of(timeline));
  std::vector<std::tuple<Part, std::size_t, int, int>> parts;
  base::Nanoseconds whole = 0;
  for (const auto& part : path) {
    parts.emplace_back(part.kind, part.rank, static_cast<int>(part.start / kMs) - 1000,
                       static_cast<int>(part.end / kMs) - 1000);
    whole += part.end - part.start;
  }
  EXPECT_THAT(
      parts,
      ElementsAre(std::tuple(Part::kComputing, 0u, 0, 9), std::tuple(Part::kMessage, 1u, 9, 12),
                  std::tuple(Part::kComputing, 1u, 12, 20), std::tuple(Part::kMessage, 2u, 20, 26),
                  std::tuple(Part::kComputing, 2u, 26, 50), std::tuple(Part::kMessage, 1u, 50, 55),
                  std::tuple(Part::kComputing, 1u, 55, 65), std::tuple(Part::kMessage, 0u, 65, 70),
                  std::tuple(Part::kComputing, 0u, 70, 80)));
  EXPECT_EQ(whole, 80 * kMs);
  EXPECT_EQ(path[4].span, 0u);
}

TEST(CriticalPath, WithoutMessagesIsARanksOwnTime) {
  auto timeline = three_ranks();
  timeline.ranks[0].requests.clear();
  const auto path = critical_path(timeline, arrows_of(timeline));
  ASSERT_EQ(path.size(), 5u);
  EXPECT_EQ(path[0].kind, Part::kComputing);
  EXPECT_EQ(path[1].kind, Part::kOther);
  EXPECT_EQ(path[1].end - path[1].start, 10 * kMs);
  EXPECT_THAT(critical_path({}, {}), IsEmpty());
}

}  // namespace critical_path_test
}  // namespace smp::report
