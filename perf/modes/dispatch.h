// perf/modes/dispatch.h: what starting a task costs, and noting a span down.
#pragma once

#include "modes/mode.h"

namespace smp::perf::modes {

void report_dispatch(std::optional<Report>& report, const InSession& in_session);
void report_recorder(std::optional<Report>& report, const InSession& in_session);

}  // namespace smp::perf::modes
