// trial/trace_median.h: one trace out of several timed ones.
#pragma once

#include <vector>

#include "simulate/trace.h"

namespace smp::partitioning {

/// The most seconds that a call by itself is taken to need. Tens of microseconds were seen, after
/// modules that sleep and so leave a cold cache.
inline constexpr double kCallItself = 100e-6;

/// Returns `sizes`, whose times are estimated from operators, with the median times of those traces
/// of `timed` that made the same calls in the same order; `sizes` unchanged if none did.
///
/// Where no operator ran between two calls, the clock shows the overhead of the calls themselves,
/// which is part of the price of messages. There, a time counts only from kCallItself on.
simulate::Trace with_median_times(simulate::Trace sizes, const std::vector<simulate::Trace>& timed);

}  // namespace smp::partitioning
