// perf/precision/counts.h: what is counted, not timed.
#pragma once

#include "harness.h"

namespace smp::perf::precision_program {

/// Bytes of tensors that a chain of stages sends in a step, in bfloat16 over float32.
void report_bytes(Report& report);
/// How often a step under autocast casts a weight.
void report_casts(Report& report);

}  // namespace smp::perf::precision_program
