// partition/plan/plan_table.h: a plan for people to read.
#pragma once

#include <string>
#include <vector>

#include "smp/plan.h"

namespace smp::partitioning {

/// What the plan promises, then each stage: its modules, parameters, memory, cost, bytes that cross
/// its borders, and why it begins there. Without a summary: modules and parameters.
/// @param width  of the terminal; below 80 columns lines are longer
std::string plan_table(const PartitionPlan& plan, int width = 100);

/// The modules of every stage, as few names as possible: the outermost ones that lie there as a
/// whole, with runs of numbered siblings as ranges: "encoder.block[0:4]", and others in
/// braces: "encoder.block.4.{norm, attention, dropout}".
std::vector<std::vector<std::string>> modules_of_stages(const PartitionPlan& plan);

}  // namespace smp::partitioning
