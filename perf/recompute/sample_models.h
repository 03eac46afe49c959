// perf/recompute/sample_models.h: what computing again saves and costs of each model of the
// samples.
#pragma once

#include "harness.h"

namespace smp::perf::recompute {

/// Rows MODEL.peak.WAY.mb and MODEL.step_over_kept.WAY of one process, of a T5, a GPT and a U-Net:
/// nothing, their attention, or their blocks computed again, in turns.
void measure_sample_models(Report& report, int times_each);

}  // namespace smp::perf::recompute
