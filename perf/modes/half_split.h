// perf/modes/half_split.h: a GPT whose loop over its blocks is written by hand, half of them on
// each rank, beside the ideal of a pipeline.
#pragma once

#include "modes/mode.h"

namespace smp::perf::modes {

void report_half_split(std::optional<Report>& report, const InSession& in_session);

}  // namespace smp::perf::modes
