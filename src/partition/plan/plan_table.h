// partition/plan/plan_table.h: a plan for people to read.
#pragma once

#include <string>

#include "smp/plan.h"

namespace smp::partitioning {

/// Returns the plan as a table: what it predicts for the step, then each stage with its modules,
/// parameters, memory, cost, bytes that cross its borders, and why it begins there. For a plan
/// without a summary, only modules and parameters.
/// @param width  of the terminal, in columns; below 80 lines are longer than that
std::string plan_table(const PartitionPlan& plan, int width = 100);

}  // namespace smp::partitioning
