// report/export/chrome_trace.cpp: an event a line, so that large traces can be cut by hand.
#include "report/export/chrome_trace.h"

#include "config/json.h"
#include "report/analysis/step_slices.h"

namespace smp::report {
namespace {

using base::Json;
using base::Nanoseconds;

double microseconds(Nanoseconds time) { return static_cast<double>(time) / 1e3; }

Json event_of(const Track& track, const Slice& slice, bool simulated) {
  Json arguments = {{"microbatch", slice.microbatch}};
  if (!simulated) arguments["processor_us"] = microseconds(slice.cpu);
  return {{"ph", "X"},
          {"pid", track.pp_rank},
          {"tid", 0},
          {"ts", microseconds(slice.start)},
          {"dur", microseconds(slice.end - slice.start)},
          {"name", slice.name},
          {"cat", slice.category},
          {"args", std::move(arguments)}};
}

/// Returns the events of a flow's two ends. Viewers bind the first to the slice that it lies in,
/// the second to the next slice unless told otherwise ("bp").
std::string flow_of(const std::vector<Track>& tracks, const SliceFlow& flow, std::int64_t number) {
  const Track& receiver = tracks[flow.to.track];
  Json start = {{"ph", "s"},
                {"id", number},
                {"pid", tracks[flow.from.track].pp_rank},
                {"tid", 0},
                {"ts", microseconds(flow.start)},
                {"name", flow.answer ? "answer" : "request"},
                {"cat", "message"}};
  Json end = start;
  end["ph"] = "f";
  end["pid"] = receiver.pp_rank;
  end["ts"] = microseconds(flow.end);
  if (flow.end >= receiver.slices[flow.to.slice].start) end["bp"] = "e";
  return start.dump() + ",\n" + end.dump() + ",\n";
}

}  // namespace

std::string to_chrome_trace(const StepTimeline& timeline) {
  const StepSlices step = slices_of(timeline);
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  for (const Track& track : step.tracks) {
    const Json process = {{"ph", "M"},
                          {"pid", track.pp_rank},
                          {"name", "process_name"},
                          {"args", {{"name", track.name}}}};
    text += process.dump() + ",\n";
    for (const Slice& slice : track.slices) {
      text += event_of(track, slice, timeline.simulated).dump() + ",\n";
    }
  }
  std::int64_t number = 0;
  for (const SliceFlow& flow : step.flows) text += flow_of(step.tracks, flow, ++number);
  if (!step.tracks.empty()) text.erase(text.size() - 2, 1);  // the last comma
  return text + "]}\n";
}

}  // namespace smp::report
