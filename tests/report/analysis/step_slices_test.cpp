// What viewers of traces are given of a step, whatever the format.
#include "report/analysis/step_slices.h"

#include <gmock/gmock.h>

namespace smp::report {
namespace step_slices_test {

using schedule::Phase;
using schedule::Span;
using testing::IsEmpty;
using testing::SizeIs;
using Kind = schedule::RequestEvent::Kind;

constexpr base::Nanoseconds kMs = base::kMillisecond;

Span span(int from, int to, int module) {
  return {(100 + from) * kMs, (100 + to) * kMs, kMs, 3, module, Phase::kForward};
}

/// Two ranks; the first works from 0 to 10 ms and from 30 to 40, the second from 15 to 25.
StepTimeline two_ranks() {
  StepTimeline timeline;
  timeline.ranks.resize(2);
  for (int rank = 0; rank < 2; ++rank) {
    timeline.ranks[rank].pp_rank = rank;
    timeline.ranks[rank].start = 100 * kMs;
    timeline.ranks[rank].end = 140 * kMs;
  }
  timeline.ranks[0].spans = {span(0, 10, -1), span(30, 40, -1)};
  timeline.ranks[1].spans = {span(15, 25, 1)};
  timeline.module_paths = {"", "decoder"};
  return timeline;
}

void add(StepTimeline& timeline, int rank, double milliseconds, Kind kind) {
  const auto time = static_cast<base::Nanoseconds>((100 + milliseconds) * kMs);
  timeline.ranks[rank].requests.push_back({time, 0, 7, kind});
}

/// Rank 0 asks rank 1 at times in milliseconds.
StepTimeline with_a_request(double asked, double begun) {
  auto timeline = two_ranks();
  add(timeline, 0, asked, Kind::kAsked);
  add(timeline, 1, begun, Kind::kBegun);
  return timeline;
}

StepTimeline with_an_answer(double answered, double received) {
  auto timeline = two_ranks();
  add(timeline, 1, answered, Kind::kAnswered);
  add(timeline, 0, received, Kind::kReceived);
  return timeline;
}

/// The only flow.
SliceFlow flow_in(const StepTimeline& timeline) {
  const auto flows = slices_of(timeline).flows;
  EXPECT_THAT(flows, SizeIs(1));
  return flows.empty() ? SliceFlow() : flows.front();
}

TEST(StepSlices, AreTheSpansOfEachRankInOrder) {
  auto timeline = two_ranks();
  timeline.ranks[1].between = {span(-20, -5, -1)};
  timeline.ranks[1].between.front().phase = Phase::kHost;
  const auto tracks = slices_of(timeline).tracks;
  ASSERT_THAT(tracks, SizeIs(2));
  EXPECT_EQ(tracks[0].name, "rank 0");
  EXPECT_THAT(tracks[0].slices, SizeIs(2));
  ASSERT_THAT(tracks[1].slices, SizeIs(2));
  EXPECT_EQ(tracks[1].slices[0].name, "the program between steps");
  EXPECT_EQ(tracks[1].slices[0].start, 0) << "all begins there";
  const Slice& slice = tracks[1].slices[1];
  EXPECT_EQ(slice.name, "decoder");
  EXPECT_EQ(slice.category, "forward");
  EXPECT_EQ(slice.start, 35 * kMs);
  EXPECT_EQ(slice.end, 45 * kMs);
  EXPECT_EQ(slice.microbatch, 3);
  EXPECT_EQ(slice.cpu, kMs);
}

TEST(StepSlices, ARequestLeadsToTheSliceThatRunsIt) {
  const auto flow = flow_in(with_a_request(8, 16));
  EXPECT_EQ(flow.from.track, 0u);
  EXPECT_EQ(flow.from.slice, 0u);
  EXPECT_EQ(flow.to.track, 1u);
  EXPECT_EQ(flow.to.slice, 0u);
  EXPECT_EQ(flow.start, 8 * kMs);
  EXPECT_EQ(flow.end, 16 * kMs);
  EXPECT_FALSE(flow.answer);
}

TEST(StepSlices, AnAnswerLeadsToTheNextSlice) {
  const auto flow = flow_in(with_an_answer(24, 26));
  EXPECT_EQ(flow.from.track, 1u);
  EXPECT_EQ(flow.to.track, 0u);
  EXPECT_EQ(flow.to.slice, 1u);
  EXPECT_EQ(flow.start, 24 * kMs);
  EXPECT_EQ(flow.end, 26 * kMs);
  EXPECT_TRUE(flow.answer);
  EXPECT_EQ(flow_in(with_an_answer(24, 35)).to.slice, 1u) << "none comes after that";
  auto busy = with_an_answer(24, 27);
  busy.ranks[0].spans.insert(busy.ranks[0].spans.begin() + 1, span(26, 28, -1));
  EXPECT_EQ(flow_in(busy).to.slice, 2u) << "what runs already did not wait for it";
}

TEST(StepSlices, AFlowDoesNotEndBeforeItStarts) {
  const auto answer = flow_in(with_an_answer(24, 20));  // the time was noted late
  EXPECT_EQ(answer.start, 20 * kMs);
  EXPECT_EQ(answer.end, 20 * kMs);
  const auto request = flow_in(with_a_request(9, 8));  // clocks differ
  EXPECT_EQ(request.start, 8 * kMs);
  EXPECT_EQ(request.end, 15 * kMs) << "within its slice";
}

TEST(StepSlices, WhatIsSentAfterASliceIsOfThatSlice) {
  const auto flow = flow_in(with_a_request(12, 16));
  EXPECT_EQ(flow.from.slice, 0u);
  EXPECT_EQ(flow.start, 10 * kMs);
}

TEST(StepSlices, LeaveOutMessagesWithoutTwoSlices) {
  EXPECT_THAT(slices_of(with_a_request(-1, 16)).flows, IsEmpty()) << "before the first slice";
  EXPECT_THAT(slices_of(with_a_request(8, 26)).flows, IsEmpty()) << "after the last";
  EXPECT_THAT(slices_of(with_a_request(31, 16)).flows, IsEmpty()) << "to an older slice";
  EXPECT_THAT(slices_of(with_an_answer(24, 41)).flows, IsEmpty());
}

TEST(StepSlices, OfNoRanksAreNone) { EXPECT_THAT(slices_of({}).tracks, IsEmpty()); }

}  // namespace step_slices_test
}  // namespace smp::report
