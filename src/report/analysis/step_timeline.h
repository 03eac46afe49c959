// report/analysis/step_timeline.h: one step on all ranks of a pipeline, and what its parts are
// called.
#pragma once

#include <string>
#include <vector>

#include "schedule/step_trace.h"

namespace smp::report {

/// One step on all ranks of a pipeline.
struct StepTimeline {
  std::vector<schedule::StepTrace> ranks;  ///< in order of pp_rank
  std::vector<std::string> module_paths;   ///< by Span::module; empty is the model itself
  bool simulated = false;                  ///< predicted, and no rank has run anything yet
  /// Of several machines: by how much times of two ranks may be wrong against each other.
  base::Nanoseconds clock_error = 0;
  bool unfinished = false;  ///< the run ended in it (unfinished_step.h)
};

/// "forward", "backward", ...; between steps "optimizer", "host" or "smp".
const char* phase_name(schedule::Phase phase);
/// "optimizer.step()", "the program between steps" or "smp between steps"; "" of work in a step.
const char* name_between_steps(schedule::Phase phase);
/// The path of Span::module; "the model" and "the step body" where there is none.
std::string module_name(const StepTimeline& timeline, int module);
/// "Step 12", "Step 12, in which the run ended" or "Simulated step".
std::string step_name(const StepTimeline& timeline);

struct TimeInterval {
  base::Nanoseconds start = 0, end = 0;
  base::Nanoseconds length() const noexcept { return end - start; }
};
/// From the earliest start of a rank or span to the latest end.
TimeInterval whole_step(const StepTimeline& timeline);
/// The same with what ranks did since the end of the step before, as far as that was recorded.
TimeInterval with_time_before(const StepTimeline& timeline);

}  // namespace smp::report
