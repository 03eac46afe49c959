// api/step/trace_numbers.h: what one rank recorded of a step, on its way to rank 0.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "schedule/step_trace.h"

namespace smp {

using Numbers = std::vector<std::int64_t>;

Numbers to_numbers(const schedule::StepTrace& trace);
/// Restores a trace.
/// @param numbers  as to_numbers() made them
schedule::StepTrace to_trace(const Numbers& numbers);

/// Returns the trace with the times of a clock that is `offset` nanoseconds behind.
schedule::StepTrace moved_back(schedule::StepTrace trace, base::Nanoseconds offset);

}  // namespace smp
