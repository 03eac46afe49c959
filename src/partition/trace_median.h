// partition/trace_median.h: one trace out of several timed ones.
#pragma once

#include <vector>

#include "partition/trace.h"

namespace smp::partition {

/// `sizes` with the median times of those of `timed` that made the same calls in the same order;
/// `sizes` itself, with its own times, if none did.
Trace with_median_times(Trace sizes, const std::vector<Trace>& timed);

}  // namespace smp::partition
