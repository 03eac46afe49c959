// perf/modes/chain.h: a chain of tiny modules, each on the other rank.
#pragma once

#include "modes/mode.h"

namespace smp::perf::modes {

/// What a module costs in every mode, in time, control messages and allocations.
void report_chain(std::optional<Report>& report, const InSession& in_session);
/// From how many microseconds on a module runs at half efficiency.
void report_smallest_module(std::optional<Report>& report, const InSession& in_session);
/// What travels with promised outputs over what travels without. On 3 ranks.
void report_bytes(std::optional<Report>& report, const InSession& in_session);

}  // namespace smp::perf::modes
