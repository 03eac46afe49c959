// partition/plan/plan_check.h: plans that come from a file, and whether they fit the model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "partition/model/module_tree.h"
#include "partition/model/pin.h"
#include "smp/plan.h"

namespace smp::partitioning {

/// Makes a plan of stages that are already chosen, one per module of the tree.
PartitionPlan plan_of(const ModuleTree& tree, const std::vector<int>& stages, int pp_size);

/// Refuses a plan that was made for another model or another number of stages, naming the first
/// difference, or that places modules as they cannot be placed.
/// @param name  the plan's file, for messages
/// @throws UsageError  the plan does not fit
void check_plan(const PartitionPlan& plan, const ModuleTree& tree, int pp_size,
                const std::string& name);

/// The contents of the file that a user gave as plan_file: a whole plan, or a short object
/// {"encoder": 0, "decoder": 1} that pins some modules and leaves the rest to the partitioner.
struct PlanFile {
  std::optional<PartitionPlan> plan;
  std::vector<Pin> pins;
};

/// Returns a pin for every module of the plan, to the stage that the plan gives it.
/// @param name  the plan's file, for reasons and messages
std::vector<Pin> pins_of(const PartitionPlan& plan, const std::string& name);

/// Returns what the text of a plan_file says.
/// @param name  of the file, leads the messages
/// @throws UsageError  it is neither a plan nor such an object
PlanFile plan_file_of(const std::string& text, const std::string& name);

}  // namespace smp::partitioning
