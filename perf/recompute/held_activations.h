// perf/recompute/held_activations.h: what transformer layers hold between forward and backward.
#pragma once

#include "harness.h"

namespace smp::perf::recompute {

/// Rows peak_over_formula.WAY of one process: bytes that a stack of DistributedTransformerLayers,
/// all of it or its cores of attention computed again, holds when the backward begins, over what
/// Korthikanti et al. 2022 (arXiv 2205.05198) count.
void measure_held_activations(Report& report, int argc, char** argv);

}  // namespace smp::perf::recompute
