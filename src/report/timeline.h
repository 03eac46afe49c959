// report/timeline.h: one step as a picture, a lane per rank (paper Figure 5).
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

/// An SVG file. Colour tells microbatches apart, light is forward and dark is backward; hatched is
/// idle. Each lane shows how long the rank was busy. Intervals too short to be seen are joined.
/// Where messages were recorded, a line follows the critical path, and up to 300 arrows lead from
/// requests to executions and from there to who waited for the answer. On the left, before 0, is
/// what ranks did since the step before, but no more of it than the step is long.
std::string draw_timeline(const StepTimeline& timeline);

}  // namespace smp::report
