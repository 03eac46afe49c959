// perf/modes/gradient_penalty.h: a step with gradients of gradients on two ranks, beside one
// process of plain LibTorch.
#pragma once

#include "modes/mode.h"

namespace smp::perf::modes {

void report_gradient_penalty(std::optional<Report>& report, const InSession& in_session);

}  // namespace smp::perf::modes
