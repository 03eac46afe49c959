// partition/plan/plan_remarks.h: what the columns of a plan's table do not say by themselves.
#pragma once

#include <string>

#include "smp/plan.h"

namespace smp::partitioning {

/// Returns where the numbers come from and what they mean, which modules are computed again or stay
/// with their parents, and which keep state; for a plan without a summary, only the last.
/// @param width  of the terminal, in columns
std::string plan_remarks(const PartitionPlan& plan, int width);

}  // namespace smp::partitioning
