// report/analysis/step_timeline.cpp: names, and when it began and ended.
#include "report/analysis/step_timeline.h"

#include <algorithm>

#include "base/check.h"

namespace smp::report {

using base::concat;
using schedule::Phase;
using schedule::Span;
using schedule::StepTrace;

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kOptimizer:
      return "optimizer";
    case Phase::kWeightGradient:
      return "weight gradients";
    case Phase::kOther:
      return "smp";
    case Phase::kHost:
      return "host";
  }
  return "";
}

const char* name_between_steps(Phase phase) {
  switch (phase) {
    case Phase::kOptimizer:
      return "optimizer.step()";
    case Phase::kHost:
      return "the program between steps";
    case Phase::kOther:
      return "smp between steps";
    default:
      return "";
  }
}

std::string module_name(const StepTimeline& timeline, int module) {
  if (module < 0) return "the step body";
  if (module >= static_cast<int>(timeline.module_paths.size())) return concat("module ", module);
  const std::string& path = timeline.module_paths[static_cast<std::size_t>(module)];
  return path.empty() ? "the model" : path;
}

std::string step_name(const StepTimeline& timeline) {
  if (timeline.simulated || timeline.ranks.empty()) return "Simulated step";
  return concat("Step ", timeline.ranks.front().step,
                timeline.unfinished ? ", in which the run ended" : "");
}

TimeInterval whole_step(const StepTimeline& timeline) {
  if (timeline.ranks.empty()) return {};
  TimeInterval whole{timeline.ranks.front().start, timeline.ranks.front().end};
  for (const StepTrace& rank : timeline.ranks) {
    whole = {std::min(whole.start, rank.start), std::max(whole.end, rank.end)};
    for (const Span& span : rank.spans) {
      whole = {std::min(whole.start, span.start), std::max(whole.end, span.end)};
    }
  }
  return whole;
}

TimeInterval with_time_before(const StepTimeline& timeline) {
  auto whole = whole_step(timeline);
  for (const StepTrace& rank : timeline.ranks) {
    if (!rank.between.empty()) whole.start = std::min(whole.start, rank.between.front().start);
  }
  return whole;
}

}  // namespace smp::report
