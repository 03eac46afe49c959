// report/export/chrome_trace.h: a step in the format of chrome://tracing, which Perfetto
// (https://ui.perfetto.dev) and Speedscope read too. Threads: any.
#pragma once

#include <string>

#include "report/analysis/step_timeline.h"

namespace smp::report {

/// One process a rank, a complete event ("ph": "X") a span, times in microseconds since the start
/// of the step: name is the module path, category the phase, arguments are microbatch and processor
/// time. Messages between ranks are flows ("s" and "f") of category "message".
std::string to_chrome_trace(const StepTimeline& timeline);

}  // namespace smp::report
