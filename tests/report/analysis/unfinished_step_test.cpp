// What is drawn of a step that no rank may have ended.
#include "report/analysis/unfinished_step.h"

#include <gtest/gtest.h>

namespace smp::report {
namespace {

using schedule::Phase;
using schedule::RequestEvent;
using schedule::RingStep;

RingStep step_of(int rank, std::int64_t step, base::Nanoseconds start) {
  RingStep made;
  made.trace.pp_rank = rank;
  made.trace.step = step;
  made.trace.start = start;
  return made;
}

TEST(UnfinishedStep, EndsWhatHasNoEndWhenTheLastRankWasHeardOf) {
  auto first = step_of(0, 4, 100), killed = step_of(1, 4, 110), ended = step_of(2, 4, 120);
  first.trace.spans.push_back({130, 0, 0, 0, -1, Phase::kForward});
  first.trace.requests.push_back({170, 0, 1, RequestEvent::Kind::kAsked});
  killed.trace.spans.push_back({125, 140, 15, 0, 1, Phase::kForward});
  killed.trace.spans.push_back({145, 0, 0, 1, 1, Phase::kForward});
  ended.trace.end = 160;
  const auto timeline = unfinished_step({{step_of(0, 3, 10), first}, {killed}, {ended}}, {"", "a"});
  ASSERT_TRUE(timeline);
  EXPECT_TRUE(timeline->unfinished);
  ASSERT_EQ(timeline->ranks.size(), 3u);
  EXPECT_EQ(timeline->ranks[0].step, 4);
  EXPECT_EQ(timeline->ranks[0].end, 170);
  EXPECT_EQ(timeline->ranks[0].spans.at(0).end, 170);
  EXPECT_EQ(timeline->ranks[1].spans.at(0).end, 140);
  EXPECT_EQ(timeline->ranks[1].spans.at(1).end, 170);
  EXPECT_EQ(timeline->ranks[1].spans.at(1).cpu, 25);
  EXPECT_EQ(timeline->ranks[2].end, 160);
  EXPECT_EQ(timeline->module_paths.at(1), "a");
}

TEST(UnfinishedStep, HasAnEmptyLaneForARankThatWasNotThereYet) {
  auto first = step_of(0, 5, 100);
  first.trace.spans.push_back({130, 150, 20, 0, -1, Phase::kForward});
  const auto timeline = unfinished_step({{first}, {step_of(1, 4, 50)}, {}}, {});
  ASSERT_TRUE(timeline);
  ASSERT_EQ(timeline->ranks.size(), 3u);
  for (int rank : {1, 2}) {
    const auto& lane = timeline->ranks[static_cast<std::size_t>(rank)];
    EXPECT_EQ(lane.pp_rank, rank);
    EXPECT_EQ(lane.step, 5);
    EXPECT_EQ(lane.start, 100);
    EXPECT_EQ(lane.end, 100);
    EXPECT_TRUE(lane.spans.empty());
  }
}

TEST(UnfinishedStep, IsNoneIfNoneBegan) { EXPECT_FALSE(unfinished_step({{}, {}}, {})); }

}  // namespace
}  // namespace smp::report
