// report/pictures/timeline_script.h: the timeline of an HTML page: a canvas with zoom, names under
// the mouse, and a search. Threads: any.
#pragma once

namespace smp::report {

/// Returns the CSS of class "timeline".
const char* timeline_style();

/// Returns JavaScript that defines showTimeline(element, data); its first lines say what `data`
/// holds.
const char* timeline_script();

}  // namespace smp::report
