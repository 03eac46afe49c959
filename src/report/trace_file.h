// report/trace_file.h: the spans of a step as JSON (trace.json of a run), so that pictures can be
// drawn again.
#pragma once

#include <string>

#include "report/timeline.h"

namespace smp::report {

/// Times in nanoseconds since the earliest start of a rank.
std::string trace_to_json(const StepTimeline& timeline);

/// @param name  leads the messages: the path of the file.
/// @throws UsageError  broken JSON, another format or version, wrong members.
StepTimeline trace_from_json(const std::string& text, const std::string& name);

}  // namespace smp::report
