// report/pictures/memory_picture.h: what each stage will hold, as bars, and what it took.
#pragma once

#include <string>

#include "report/pictures/memory_use.h"
#include "smp/plan.h"

namespace smp::report {

/// An SVG file: a bar per stage, from weights to activations, and its limit if there is one; a mark
/// at what was measured of the stage.
/// @param plan      with a summary
/// @param measured  of a run with this plan; stages of which nothing is known get no mark
std::string draw_memory(const PartitionPlan& plan, const MemoryUse& measured = {});

}  // namespace smp::report
