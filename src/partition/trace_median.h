// partition/trace_median.h: one trace out of several timed ones.
#pragma once

#include <vector>

#include "simulate/trace.h"

namespace smp::partitioning {

/// `sizes` with the median times of those of `timed` that made the same calls in the same order;
/// `sizes` itself, with its own times, if none did.
simulate::Trace with_median_times(simulate::Trace sizes, const std::vector<simulate::Trace>& timed);

}  // namespace smp::partitioning
