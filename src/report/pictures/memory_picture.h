// report/pictures/memory_picture.h: what each stage will hold, as bars, and what it took.
#pragma once

#include <string>

#include "report/pictures/memory_use.h"
#include "smp/plan.h"

namespace smp::report {

/// Returns an SVG file: a bar per stage, from weights to activations, its limit if there is one,
/// and a mark at the memory that was measured.
/// @param plan      must have a summary
/// @param measured  of a run with this plan; stages without a measurement get no mark
std::string draw_memory(const PartitionPlan& plan, const MemoryUse& measured = {});

}  // namespace smp::report
