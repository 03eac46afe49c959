// Packets that Perfetto reads: tests/trace_test.py decodes those of a run without our help.
#include "report/export/perfetto_trace.h"

#include <gmock/gmock.h>

#include "report/export/perfetto_trace.pb.h"

namespace smp::report {
namespace perfetto_trace_test {

using perfetto::Trace;
using perfetto::TrackEvent;
using schedule::Phase;
using testing::ElementsAre;
using testing::IsEmpty;
using Kind = schedule::RequestEvent::Kind;

/// Rank 0 asks in [0, 10] for what rank 1 runs in [20, 30], and has the answer before [40, 50]; ns.
StepTimeline two_ranks() {
  StepTimeline timeline;
  timeline.ranks.resize(2);
  timeline.ranks[1].pp_rank = 1;
  for (auto& rank : timeline.ranks) rank.end = 50;
  timeline.ranks[0].spans = {{0, 10, 5000, -1, -1, Phase::kForward},
                             {40, 50, 5000, -1, -1, Phase::kForward}};
  timeline.ranks[1].spans = {{20, 30, 1500, 2, 1, Phase::kBackward}};
  timeline.ranks[0].requests = {{5, 0, 7, Kind::kAsked}, {35, 0, 7, Kind::kReceived}};
  timeline.ranks[1].requests = {{21, 0, 7, Kind::kBegun}, {29, 0, 7, Kind::kAnswered}};
  timeline.module_paths = {"", "decoder"};
  return timeline;
}

Trace trace_of(const StepTimeline& timeline) {
  Trace trace;
  EXPECT_TRUE(trace.ParseFromString(to_perfetto_trace(timeline)));
  return trace;
}

TEST(PerfettoTrace, HasAThreadARank) {
  const Trace trace = trace_of(two_ranks());
  ASSERT_EQ(trace.packet_size(), 2 * 2 + 2 * 3);
  const auto& process = trace.packet(6).track_descriptor();
  const auto& thread = trace.packet(7).track_descriptor();
  EXPECT_EQ(process.process().process_name(), "rank 1");
  EXPECT_EQ(thread.thread().thread_name(), "rank 1");
  EXPECT_EQ(thread.parent_uuid(), process.uuid());
  EXPECT_EQ(thread.thread().pid(), process.process().pid());
  EXPECT_NE(trace.packet(0).track_descriptor().uuid(), process.uuid());
  EXPECT_NE(trace.packet(0).track_descriptor().process().pid(), 0) << "is Perfetto's idle process";
}

TEST(PerfettoTrace, HasTwoEventsASpan) {
  const Trace trace = trace_of(two_ranks());
  ASSERT_EQ(trace.packet_size(), 10);
  const auto& begin = trace.packet(8);
  EXPECT_EQ(begin.timestamp(), 20u);
  EXPECT_NE(begin.trusted_packet_sequence_id(), 0u);
  const TrackEvent& event = begin.track_event();
  EXPECT_EQ(event.type(), TrackEvent::TYPE_SLICE_BEGIN);
  EXPECT_EQ(event.track_uuid(), trace.packet(7).track_descriptor().uuid());
  EXPECT_EQ(event.name(), "decoder");
  EXPECT_THAT(event.categories(), ElementsAre("backward"));
  ASSERT_EQ(event.debug_annotations_size(), 2);
  EXPECT_EQ(event.debug_annotations(0).name(), "microbatch");
  EXPECT_EQ(event.debug_annotations(0).int_value(), 2);
  EXPECT_EQ(event.debug_annotations(1).name(), "processor_us");
  EXPECT_EQ(event.debug_annotations(1).double_value(), 1.5);
  EXPECT_EQ(trace.packet(9).timestamp(), 30u);
  EXPECT_EQ(trace.packet(9).track_event().type(), TrackEvent::TYPE_SLICE_END);
  EXPECT_EQ(trace.packet(9).track_event().track_uuid(), event.track_uuid());
  EXPECT_TRUE(trace.packet(2).has_timestamp()) << "a time of 0 is a time";
}

TEST(PerfettoTrace, HasAFlowAMessage) {
  const Trace trace = trace_of(two_ranks());
  ASSERT_EQ(trace.packet_size(), 10);
  const auto& asks = trace.packet(2).track_event();
  const auto& runs = trace.packet(8).track_event();
  const auto& goes_on = trace.packet(4).track_event();
  EXPECT_THAT(asks.flow_ids(), ElementsAre(1));
  EXPECT_THAT(asks.terminating_flow_ids(), IsEmpty());
  EXPECT_THAT(runs.terminating_flow_ids(), ElementsAre(1));
  EXPECT_THAT(runs.flow_ids(), ElementsAre(2));
  EXPECT_THAT(goes_on.terminating_flow_ids(), ElementsAre(2));
  EXPECT_THAT(goes_on.flow_ids(), IsEmpty());
}

TEST(PerfettoTrace, OfASimulationSaysSo) {
  auto timeline = two_ranks();
  timeline.simulated = true;
  const Trace trace = trace_of(timeline);
  EXPECT_EQ(trace.packet(0).track_descriptor().process().process_name(), "stage 0");
  EXPECT_EQ(trace.packet(2).track_event().debug_annotations_size(), 1) << "nothing was measured";
  EXPECT_EQ(to_perfetto_trace({}), "");
}

}  // namespace perfetto_trace_test
}  // namespace smp::report
