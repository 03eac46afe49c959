// report/analysis/bubble_table.h: the bubble of a step beside those that it is held against.
// Threads: any.
#pragma once

#include <optional>

#include "report/analysis/step_timeline.h"
#include "report/page/html_page.h"

namespace smp::report {

/// Bubbles of a step: the share of the ranks' time that is idle, in [0, 1]; unknown ones are empty.
struct Bubbles {
  std::optional<double> measured;
  std::optional<double> simulated;  ///< for the plan
  std::optional<double> ideal;      ///< of equal stages without any delay
};

/// Returns the bubble of p equal stages and m microbatches, (p - 1) / (m + p - 1); nothing for a
/// step without ranks.
[[nodiscard]] std::optional<double> ideal_bubble(const StepTimeline& timeline);

/// Adds a table of the bubbles to `page`; nothing if there is no ideal bubble, and so no step.
void add_bubbles(HtmlPage& page, const Bubbles& bubbles);

}  // namespace smp::report
