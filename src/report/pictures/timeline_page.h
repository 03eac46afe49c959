// report/pictures/timeline_page.h: one step as a page for a browser: zoom, names under the mouse,
// search by module path, and where each rank's idle time lies. Threads: any.
#pragma once

#include <optional>
#include <string>

#include "report/analysis/step_timeline.h"
#include "report/page/html_page.h"

namespace smp::report {

/// Adds the timeline, and tables of where the time went, to `page`.
void add_timeline(HtmlPage& page, const StepTimeline& timeline);

/// Returns the timeline as a page of its own, one HTML file.
/// @param simulated_bubble  the bubble of the plan's whole step, to compare that of `timeline` with
std::string draw_timeline_page(const StepTimeline& timeline,
                               std::optional<double> simulated_bubble = std::nullopt);

}  // namespace smp::report
