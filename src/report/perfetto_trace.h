// report/perfetto_trace.h: a step in Perfetto's own format (https://ui.perfetto.dev), which is
// smaller than Chrome's and keeps nanoseconds. Threads: any.
#pragma once

#include <string>

#include "report/step_timeline.h"

namespace smp::report {

/// Returns the bytes of a message Trace (perfetto_trace.proto): one process with one thread per
/// rank, two events per span, times in nanoseconds since the first event. The name is the module
/// path, the category the phase; annotations are microbatch and processor time. Messages between
/// ranks are flows, from the beginning of the slice that sent a message to the beginning of the
/// slice that could begin because of it.
std::string to_perfetto_trace(const StepTimeline& timeline);

}  // namespace smp::report
