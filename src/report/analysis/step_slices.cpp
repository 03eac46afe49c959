// report/analysis/step_slices.cpp: viewers look for the slice at the time of a flow's end; here it
// is found beforehand, so that each end has one.
#include "report/analysis/step_slices.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "report/analysis/step_arrows.h"

namespace smp::report {
namespace {

using base::Nanoseconds;
using schedule::Span;
using schedule::StepTrace;

Slice slice_of(const StepTimeline& timeline, const Span& span, Nanoseconds origin) {
  const std::string between = name_between_steps(span.phase);
  return {span.start - origin,
          span.end - origin,
          span.cpu,
          span.microbatch,
          between.empty() ? module_name(timeline, span.module) : between,
          phase_name(span.phase)};
}

Track track_of(const StepTimeline& timeline, const StepTrace& rank, Nanoseconds origin) {
  Track track{
      rank.pp_rank, base::concat(timeline.simulated ? "stage " : "rank ", rank.pp_rank), {}};
  for (const auto* spans : {&rank.between, &rank.spans}) {
    for (const Span& span : *spans) track.slices.push_back(slice_of(timeline, span, origin));
  }
  std::stable_sort(track.slices.begin(), track.slices.end(),
                   [](const Slice& a, const Slice& b) { return a.start < b.start; });
  return track;
}

/// Returns the index of the first slice that begins after `time`.
std::size_t first_after(const Track& track, Nanoseconds time) {
  const auto found =
      std::upper_bound(track.slices.begin(), track.slices.end(), time,
                       [](Nanoseconds when, const Slice& slice) { return when < slice.start; });
  return static_cast<std::size_t>(found - track.slices.begin());
}

/// Returns the last slice that had begun by `time`: its message may be sent after its end.
std::optional<std::size_t> sender_at(const Track& track, Nanoseconds time) {
  const auto next = first_after(track, time);
  if (next == 0) return std::nullopt;
  return next - 1;
}

/// Returns the slice that runs at `time`, if there is one.
std::optional<std::size_t> slice_at(const Track& track, Nanoseconds time) {
  const auto last = sender_at(track, time);
  return last && time <= track.slices[*last].end ? last : std::nullopt;
}

/// Returns the slice that receives a message. A request belongs to the slice that runs it; an
/// answer may come while another slice runs, or none, and its receiver goes on in the next.
std::optional<std::size_t> receiver_at(const Track& track, Nanoseconds time, bool answer) {
  const auto running = slice_at(track, time);
  const auto next = first_after(track, time);
  if (running && (!answer || next == track.slices.size())) return running;
  if (next == track.slices.size()) return std::nullopt;
  return next;
}

std::optional<SliceFlow> flow_of(const std::vector<Track>& tracks, const Arrow& arrow,
                                 Nanoseconds origin) {
  const auto sent = arrow.start - origin;
  const auto received = arrow.end - origin;
  const auto sender = sender_at(tracks[arrow.from], sent);
  const auto receiver = receiver_at(tracks[arrow.to], received, arrow.answer);
  if (!sender || !receiver) return std::nullopt;
  const Slice& from = tracks[arrow.from].slices[*sender];
  const Slice& to = tracks[arrow.to].slices[*receiver];
  if (to.start <= from.start) return std::nullopt;
  SliceFlow flow{{arrow.from, *sender}, {arrow.to, *receiver}, 0, 0, arrow.answer};
  // A sender that loses its core notes the time only after the message arrived.
  flow.start = std::clamp(std::min(sent, received), from.start, std::max(from.start, from.end));
  flow.end = std::max(received, arrow.answer ? flow.start : to.start);
  return flow;
}

}  // namespace

StepSlices slices_of(const StepTimeline& timeline) {
  const auto origin = with_time_before(timeline).start;
  StepSlices step;
  for (const auto& rank : timeline.ranks) step.tracks.push_back(track_of(timeline, rank, origin));
  for (const Arrow& arrow : arrows_of(timeline)) {
    if (const auto flow = flow_of(step.tracks, arrow, origin)) step.flows.push_back(*flow);
  }
  return step;
}

}  // namespace smp::report
