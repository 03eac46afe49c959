// report/analysis/trace_file.h: the spans of a step as JSON (trace.json of a run), so that pictures
// can be drawn again.
#pragma once

#include <string>

#include "report/analysis/step_timeline.h"

namespace smp::report {

/// The JSON member that holds the step that was simulated (partition/simulated/planned_step.h).
inline constexpr const char* kStepMember = "step";

/// Returns the step as JSON. Times are in nanoseconds since the earliest start of a rank; those
/// before the step are negative.
/// @param step  as PlannedStep::to_json() makes it; empty if there is none
std::string trace_to_json(const StepTimeline& timeline, const std::string& step = {});

/// Reads what trace_to_json() wrote.
/// @param name  leads the messages: the path of the file.
/// @throws UsageError  broken JSON, another format or version, wrong members.
StepTimeline trace_from_json(const std::string& text, const std::string& name);

/// Checks that the times of one step are near each other, and numbers of microbatches, ranks and
/// phases in their range; trace_from_json() does so itself.
/// @throws UsageError  they are not; the message begins with `name`
void require_sense(const StepTimeline& timeline, const std::string& name);

}  // namespace smp::report
