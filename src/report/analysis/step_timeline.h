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
  bool simulated = false;                  ///< true: it was predicted, and no rank has run it
  /// The most nanoseconds by which times of two ranks may be off against each other, if the ranks
  /// are on several machines.
  base::Nanoseconds clock_error = 0;
  bool unfinished = false;  ///< the run ended in it (unfinished_step.h)
};

/// Returns the name of a phase, "forward", "backward", ...; between steps "optimizer", "host" or
/// "smp".
const char* phase_name(schedule::Phase phase);
/// Returns "optimizer.step()", "the program between steps" or "smp between steps"; "" for phases
/// within a step.
const char* name_between_steps(schedule::Phase phase);
/// Returns the path of module number `module` (Span::module), or "the model" for the model itself
/// and "the step body" for -1.
std::string module_name(const StepTimeline& timeline, int module);
/// Returns "Step 12", "Step 12, in which the run ended" or "Simulated step".
std::string step_name(const StepTimeline& timeline);

struct TimeInterval {
  base::Nanoseconds start = 0, end = 0;
  base::Nanoseconds length() const noexcept { return end - start; }
};
/// Returns the interval from the earliest start of a rank or span to the latest end.
TimeInterval whole_step(const StepTimeline& timeline);
/// Returns the same interval, extended by what ranks did since the end of the step before, as far
/// as that was recorded.
TimeInterval with_time_before(const StepTimeline& timeline);

}  // namespace smp::report
