// partition/plan/explain.h: a placement and what was predicted of it, as a plan that says why.
#pragma once

#include <string>
#include <vector>

#include "partition/model/cost_tree.h"
#include "partition/model/memory_model.h"
#include "simulate/machine.h"
#include "smp/plan.h"

namespace smp::partitioning {

/// The facts that the planner knows about the placement that it chose. Refers to the planner's
/// values, which must outlive it.
struct PlanFacts {
  const ModuleTree& tree;
  const simulate::Trace& trace;
  const CostTree& costs;
  const simulate::Machine& machine;
  const std::vector<int>& stages;  ///< the stage of every module of the tree
  /// The reason why a module was placed by hand ("placed by set_partition"), by module; an empty
  /// string if it was not. The whole vector may be empty.
  const std::vector<std::string>& by_hand;
  const std::vector<StageMemory>& memory;  ///< by stage
  PlanSummary::Outcome chosen;
  std::vector<PlanSummary::Outcome> others;
  std::string pipeline;
  int microbatches = 1;
  int active_microbatches = 0;  ///< that the planner chose; 0: it did not
  double step_bound = 0;        ///< seconds that no placement goes below; 0: not known
};

/// Returns the plan with its summary, the costs of modules, and reasons.
PartitionPlan explained_plan(const PlanFacts& facts);

}  // namespace smp::partitioning
