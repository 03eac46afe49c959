// report/memory_picture.h: what each stage will hold, as bars.
#pragma once

#include <string>

#include "smp/plan.h"

namespace smp::report {

/// An SVG file: a bar per stage, from weights to activations, and its limit if there is one.
/// @param plan  with a summary
std::string draw_memory(const PartitionPlan& plan);

}  // namespace smp::report
