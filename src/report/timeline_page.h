// report/timeline_page.h: one step as a page for a browser: zoom, names under the mouse, search by
// module path, and where each rank's idle time lies. Threads: any.
#pragma once

#include <string>
#include <vector>

#include "report/html_page.h"
#include "report/timeline.h"

namespace smp::report {

/// Where the time of one rank went, in nanoseconds; they add up to the length of the step.
struct RankTimes {
  base::Nanoseconds busy = 0;      ///< in modules or the body
  base::Nanoseconds filling = 0;   ///< before its first span: the pipeline fills
  base::Nanoseconds draining = 0;  ///< after its last span: it drains, or others are still busy
  base::Nanoseconds waiting = 0;   ///< between spans: for tensors of other ranks
};
/// Of each rank of `timeline`, in order.
std::vector<RankTimes> times_of(const StepTimeline& timeline);

/// Adds the timeline and the table of times to `page`.
void add_timeline(HtmlPage& page, const StepTimeline& timeline);

/// A page of its own: one HTML file.
std::string draw_timeline_page(const StepTimeline& timeline);

}  // namespace smp::report
