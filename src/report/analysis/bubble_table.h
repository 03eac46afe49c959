// report/analysis/bubble_table.h: the bubble of a step beside those that it is held against.
// Threads: any.
#pragma once

#include <optional>

#include "report/analysis/step_timeline.h"
#include "report/page/html_page.h"

namespace smp::report {

/// Shares of the ranks' time in [0, 1]; what is not known is left out.
struct Bubbles {
  std::optional<double> measured;
  std::optional<double> simulated;  ///< for the plan
  std::optional<double> ideal;      ///< of equal stages without any delay
};

/// Of p equal stages and m microbatches: (p - 1) / (m + p - 1). None of a step without ranks.
[[nodiscard]] std::optional<double> ideal_bubble(const StepTimeline& timeline);

/// Nothing if there is no ideal one, hence no step.
void add_bubbles(HtmlPage& page, const Bubbles& bubbles);

}  // namespace smp::report
