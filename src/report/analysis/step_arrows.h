// report/analysis/step_arrows.h: messages of a step, from the rank that sent them to the rank that
// could go on because of them. Threads: any.
#pragma once

#include <cstddef>
#include <vector>

#include "report/analysis/step_timeline.h"

namespace smp::report {

struct Arrow {
  std::size_t from = 0, to = 0;  ///< places in StepTimeline::ranks
  base::Nanoseconds start = 0, end = 0;
  bool answer = false;  ///< else a request, or a tensor that was promised to one
};

/// Returns the messages in order of their ends, without those of which only one end was recorded.
std::vector<Arrow> arrows_of(const StepTimeline& timeline);

}  // namespace smp::report
