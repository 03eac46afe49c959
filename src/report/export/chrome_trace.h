// report/export/chrome_trace.h: a step in the format of chrome://tracing, which Perfetto
// (https://ui.perfetto.dev) and Speedscope read too. Threads: any.
#pragma once

#include <string>

#include "report/analysis/step_timeline.h"

namespace smp::report {

/// Returns the step as JSON: one process per rank and one complete event ("ph": "X") per span, with
/// times in microseconds since the start of the step. The name is the module path, the category the
/// phase; the arguments are microbatch and processor time. Messages between ranks are flows ("s"
/// and "f") of category "message".
std::string to_chrome_trace(const StepTimeline& timeline);

}  // namespace smp::report
