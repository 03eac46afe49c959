// perf/modes/dispatch.h: what starting a task costs, and noting a span down.
#pragma once

#include "modes/mode.h"

namespace smp::perf::modes {

/// From the look for messages that finds a task until the worker that ran it is idle again.
void report_dispatch(std::optional<Report>& report, const InSession& in_session);
/// A span with one message, while the recorder is on and while it is off.
void report_recorder(std::optional<Report>& report, const InSession& in_session);

}  // namespace smp::perf::modes
