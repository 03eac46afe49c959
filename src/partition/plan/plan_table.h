// partition/plan/plan_table.h: a plan for people to read.
#pragma once

#include <string>
#include <vector>

#include "smp/plan.h"

namespace smp::partitioning {

/// Returns the plan as a table: what it predicts for the step, then each stage with its modules,
/// parameters, memory, cost, bytes that cross its borders, and why it begins there. For a plan
/// without a summary, only modules and parameters.
/// @param width  of the terminal, in columns; below 80 lines are longer than that
std::string plan_table(const PartitionPlan& plan, int width = 100);

/// Returns, by stage, the names of its modules, as few as possible: the outermost modules that lie
/// there as a whole, runs of numbered siblings as ranges ("encoder.block[0:4]"), and others in
/// braces ("encoder.block.4.{norm, attention, dropout}").
std::vector<std::vector<std::string>> modules_of_stages(const PartitionPlan& plan);

}  // namespace smp::partitioning
