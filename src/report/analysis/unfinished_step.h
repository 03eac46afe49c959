// report/analysis/unfinished_step.h: the last step of a run that was killed, out of what its ranks
// wrote while they worked.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/analysis/step_timeline.h"
#include "schedule/trace_ring.h"

namespace smp::report {

/// Returns the latest step that any rank began. A rank that did not begin it has an empty lane;
/// spans that still ran end at the last time when any rank was heard of.
/// @param rings         what read_ring() found for every rank, in order of pp_rank
/// @param module_paths  by Span::module
/// @return nothing if no rank began a step
[[nodiscard]] std::optional<StepTimeline> unfinished_step(
    std::vector<std::vector<schedule::RingStep>> rings, std::vector<std::string> module_paths);

}  // namespace smp::report
