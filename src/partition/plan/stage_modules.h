// partition/plan/stage_modules.h: the modules of each stage, by as few names as possible.
#pragma once

#include <string>
#include <vector>

#include "smp/plan.h"

namespace smp::partitioning {

/// Returns, by stage, the names of its modules, as few as possible: the outermost modules that lie
/// there as a whole, as short_names() has them.
std::vector<std::vector<std::string>> modules_of_stages(const PartitionPlan& plan);

}  // namespace smp::partitioning
