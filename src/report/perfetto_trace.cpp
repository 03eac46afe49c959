// report/perfetto_trace.cpp: the events of each track in order of time, as a sequence of packets of
// its own.
#include "report/perfetto_trace.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "report/perfetto_trace.pb.h"
#include "report/step_slices.h"

namespace smp::report {
namespace {

using base::Nanoseconds;
using perfetto::Trace;
using perfetto::TracePacket;
using perfetto::TrackEvent;

/// The numbers by which Perfetto knows a track. They are never 0, which stands for the idle
/// process, the track of events without a track, and a packet of no sequence.
struct TrackNumbers {
  explicit TrackNumbers(std::size_t track)
      : process(static_cast<std::int32_t>(track + 1)),
        process_uuid(2 * track + 1),
        thread_uuid(2 * track + 2),
        sequence(static_cast<std::uint32_t>(track + 1)) {}
  std::int32_t process;  // pid, and tid of its only thread
  std::uint64_t process_uuid, thread_uuid;
  std::uint32_t sequence;
};

/// Numbers of the flows that begin and end at a slice.
struct FlowsOfSlice {
  std::vector<std::uint64_t> out, in;
};
using FlowsBySlice = std::map<std::pair<std::size_t, std::size_t>, FlowsOfSlice>;

FlowsBySlice flows_by_slice(const std::vector<SliceFlow>& flows) {
  FlowsBySlice by_slice;
  std::uint64_t number = 0;
  for (const SliceFlow& flow : flows) {
    ++number;
    by_slice[{flow.from.track, flow.from.slice}].out.push_back(number);
    by_slice[{flow.to.track, flow.to.slice}].in.push_back(number);
  }
  return by_slice;
}

TracePacket& add_packet(Trace& trace, const TrackNumbers& numbers) {
  TracePacket& packet = *trace.add_packet();
  packet.set_trusted_packet_sequence_id(numbers.sequence);
  return packet;
}

void describe(Trace& trace, const Track& track, const TrackNumbers& numbers) {
  auto& process = *add_packet(trace, numbers).mutable_track_descriptor();
  process.set_uuid(numbers.process_uuid);
  process.mutable_process()->set_pid(numbers.process);
  process.mutable_process()->set_process_name(track.name);
  auto& thread = *add_packet(trace, numbers).mutable_track_descriptor();
  thread.set_uuid(numbers.thread_uuid);
  thread.set_parent_uuid(numbers.process_uuid);
  thread.mutable_thread()->set_pid(numbers.process);
  thread.mutable_thread()->set_tid(numbers.process);
  thread.mutable_thread()->set_thread_name(track.name);
}

TrackEvent& add_event(Trace& trace, const TrackNumbers& numbers, Nanoseconds time,
                      TrackEvent::Type type) {
  TracePacket& packet = add_packet(trace, numbers);
  packet.set_timestamp(static_cast<std::uint64_t>(std::max<Nanoseconds>(time, 0)));
  TrackEvent& event = *packet.mutable_track_event();
  event.set_type(type);
  event.set_track_uuid(numbers.thread_uuid);
  return event;
}

void annotate(TrackEvent& event, const Slice& slice, bool simulated) {
  auto& microbatch = *event.add_debug_annotations();
  microbatch.set_name("microbatch");
  microbatch.set_int_value(slice.microbatch);
  if (simulated) return;
  auto& processor = *event.add_debug_annotations();
  processor.set_name("processor_us");
  processor.set_double_value(static_cast<double>(slice.cpu) / 1e3);
}

void add_slice(Trace& trace, const TrackNumbers& numbers, const Slice& slice, bool simulated,
               const FlowsOfSlice& flows) {
  auto& event = add_event(trace, numbers, slice.start, TrackEvent::TYPE_SLICE_BEGIN);
  event.set_name(slice.name);
  event.add_categories(slice.category);
  annotate(event, slice, simulated);
  for (const auto number : flows.out) event.add_flow_ids(number);
  for (const auto number : flows.in) event.add_terminating_flow_ids(number);
  add_event(trace, numbers, slice.end, TrackEvent::TYPE_SLICE_END);
}

}  // namespace

std::string to_perfetto_trace(const StepTimeline& timeline) {
  const StepSlices step = slices_of(timeline);
  const FlowsBySlice flows = flows_by_slice(step.flows);
  Trace trace;
  for (std::size_t i = 0; i < step.tracks.size(); ++i) {
    const TrackNumbers numbers(i);
    describe(trace, step.tracks[i], numbers);
    for (std::size_t slice = 0; slice < step.tracks[i].slices.size(); ++slice) {
      const auto found = flows.find({i, slice});
      add_slice(trace, numbers, step.tracks[i].slices[slice], timeline.simulated,
                found == flows.end() ? FlowsOfSlice() : found->second);
    }
  }
  return trace.SerializeAsString();
}

}  // namespace smp::report
