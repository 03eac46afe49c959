// report/analysis/critical_path.h: what the length of a step consists of: the chain of computations
// and messages that ends last. Shortening anything else does not shorten the step. Threads: any.
#pragma once

#include <cstddef>
#include <vector>

#include "report/analysis/step_arrows.h"
#include "report/analysis/step_timeline.h"

namespace smp::report {

/// A stretch of the path; together they cover the step from its first start to its last end.
struct PathPart {
  enum class Kind {
    kComputing,  ///< on rank `rank`: Span `span`
    kMessage,    ///< a message to `rank`, until the rank could go on
    kOther,      ///< on `rank`: neither computes nor was any message recorded that it waited for
  };
  Kind kind = Kind::kOther;
  std::size_t rank = 0;  ///< place in StepTimeline::ranks
  std::size_t span = 0;
  base::Nanoseconds start = 0, end = 0;
};

/// Returns the critical path in order of time; empty if no rank recorded a span.
/// @param arrows  arrows_of(timeline)
std::vector<PathPart> critical_path(const StepTimeline& timeline, const std::vector<Arrow>& arrows);

}  // namespace smp::report
