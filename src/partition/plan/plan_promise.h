// partition/plan/plan_promise.h: what a plan is expected to do, above its table.
#pragma once

#include <string>

#include "smp/plan.h"

namespace smp::partitioning {

/// False for a plan whose modules were only counted: its seconds would be invented.
bool knows_times(const PlanSummary& summary);

/// Returns how the step is run, what the plan and others would do, and which stage comes closest to
/// its limit of memory.
/// @param plan   has a summary
/// @param width  of the terminal, in columns
std::string plan_promise(const PartitionPlan& plan, int width);

}  // namespace smp::partitioning
