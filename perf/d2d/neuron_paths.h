// perf/d2d/neuron_paths.h: what our wires between Neuron cores cost beside the calls of the runtime
// that they make. There is no such runtime here: it is the one that tests play.
#pragma once

#include "harness.h"

namespace smp::perf::d2d_program {

/// Adds rows `neuron.*`; none where the played runtime is not built (the tests are off). Both ranks
/// are in this process, so one process measures.
void report_neuron_paths(Report& report);

}  // namespace smp::perf::d2d_program
