// report/analysis/unfinished_step.cpp: finds the step, and ends what has no end.
#include "report/analysis/unfinished_step.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace smp::report {
namespace {

using base::Nanoseconds;
using schedule::RingStep;
using schedule::StepTrace;
using Rings = std::vector<std::vector<RingStep>>;

std::optional<std::int64_t> latest_step(const Rings& rings) {
  std::optional<std::int64_t> latest;
  for (const auto& ring : rings) {
    if (!ring.empty()) latest = std::max(latest.value_or(0), ring.back().trace.step);
  }
  return latest;
}

/// Returns the time when the rank was last heard of in this step.
Nanoseconds last_sign(const StepTrace& trace) {
  auto last = std::max(trace.start, trace.end);
  for (const auto& span : trace.spans) last = std::max({last, span.start, span.end});
  for (const auto& event : trace.requests) last = std::max(last, event.time);
  return last;
}

void end_at(StepTrace& trace, Nanoseconds end) {
  if (trace.end == 0) trace.end = end;
  for (auto& span : trace.spans) {
    if (span.end != 0) continue;
    span.end = end;
    span.cpu = end - span.start;
  }
}

}  // namespace

std::optional<StepTimeline> unfinished_step(Rings rings, std::vector<std::string> module_paths) {
  const auto step = latest_step(rings);
  if (!step) return std::nullopt;
  StepTimeline timeline;
  timeline.unfinished = true;
  timeline.module_paths = std::move(module_paths);
  Nanoseconds start = 0, end = 0;
  for (std::size_t rank = 0; rank < rings.size(); ++rank) {
    auto& trace = timeline.ranks.emplace_back();
    trace.pp_rank = static_cast<int>(rank);
    trace.step = *step;
    auto& ring = rings[rank];
    if (ring.empty() || ring.back().trace.step != *step) continue;
    trace = std::move(ring.back().trace);
    start = start == 0 ? trace.start : std::min(start, trace.start);
    end = std::max(end, last_sign(trace));
  }
  for (auto& trace : timeline.ranks) {
    if (trace.start == 0) trace.start = trace.end = start;  // it was elsewhere
    end_at(trace, end);
  }
  return timeline;
}

}  // namespace smp::report
