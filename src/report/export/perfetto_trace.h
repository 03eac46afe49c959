// report/export/perfetto_trace.h: a step in Perfetto's own format (https://ui.perfetto.dev), which
// is smaller than Chrome's and keeps nanoseconds. Threads: any.
#pragma once

#include <string>

#include "report/analysis/step_timeline.h"

namespace smp::report {

/// Bytes of a message Trace (perfetto_trace.proto). A process with one thread a rank, two events a
/// span, times in nanoseconds since the first of them: name is the module path, category the phase,
/// annotations are microbatch and processor time. Messages between ranks are flows, from the
/// beginning of the slice that sent one to that of the slice which could begin because of it.
std::string to_perfetto_trace(const StepTimeline& timeline);

}  // namespace smp::report
