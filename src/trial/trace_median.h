// trial/trace_median.h: one trace out of several timed ones.
#pragma once

#include <vector>

#include "simulate/trace.h"

namespace smp::partitioning {

/// Seconds. Tens of microseconds were seen, after modules that sleep: a cold cache.
inline constexpr double kCallItself = 100e-6;

/// `sizes`, whose times are those of its operators, with the median times of those of `timed` that
/// made the same calls in the same order; `sizes` itself if none did.
///
/// Where no operator ran between two calls, the clock shows what the calls themselves take on their
/// way, which messages are priced with. It counts there from kCallItself on.
simulate::Trace with_median_times(simulate::Trace sizes, const std::vector<simulate::Trace>& timed);

}  // namespace smp::partitioning
