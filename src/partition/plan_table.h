// partition/plan_table.h: a plan for people to read.
#pragma once

#include <string>
#include <vector>

#include "smp/plan.h"

namespace smp::partition {

/// One line per stage: parameters, MiB, a bar relative to the largest stage, modules.
std::string plan_table(const PartitionPlan& plan);

/// The modules of a stage, as few names as possible: the outermost ones that lie there as a whole,
/// with runs of numbered siblings as ranges: "encoder.block[0:4]".
std::vector<std::string> stage_modules(const PartitionPlan& plan, int pp_rank);

/// "950", "4.1 K", "4.1 M", "2.0 G".
std::string short_count(std::int64_t count);

}  // namespace smp::partition
