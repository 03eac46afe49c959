// report/pictures/timeline.h: one step as a picture, a lane per rank (paper Figure 5).
#pragma once

#include <string>

#include "report/analysis/step_timeline.h"

namespace smp::report {

/// Returns an SVG file. Colour tells microbatches apart; light is forward, dark is backward, and
/// hatched is idle, in a colour for each reason (idle_time.h). Each lane shows how long the rank
/// was busy. Intervals too short to be seen are joined. Where messages were recorded, a line
/// follows the critical path, and up to 300 arrows lead from requests to their executions and from
/// there to the ranks that waited for the answers. On the left, before 0, is what ranks did since
/// the step before, but no more of it than the step is long.
std::string draw_timeline(const StepTimeline& timeline);

}  // namespace smp::report
