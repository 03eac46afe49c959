// partition/plan/explain.h: a placement and what was predicted of it, as a plan that says why.
#pragma once

#include <string>
#include <vector>

#include "partition/model/cost_tree.h"
#include "partition/model/memory_model.h"
#include "simulate/machine.h"
#include "smp/plan.h"

namespace smp::partitioning {

/// What the planner knows of the placement that it chose. Refers to the planner's values.
struct PlanFacts {
  const ModuleTree& tree;
  const simulate::Trace& trace;
  const CostTree& costs;
  const simulate::Machine& machine;
  const std::vector<int>& stages;  ///< of every module of the tree
  /// Per module what put it there by hand: "placed by set_partition"; empty: nothing. May be empty
  /// as a whole.
  const std::vector<std::string>& by_hand;
  const std::vector<StageMemory>& memory;  ///< by stage
  PlanSummary::Outcome chosen;
  std::vector<PlanSummary::Outcome> others;
  std::string pipeline;
  int microbatches = 1;
  double step_bound = 0;  ///< seconds that no placement goes below; 0: not known
};

/// The plan with its summary, costs of modules, and reasons.
PartitionPlan explained_plan(const PlanFacts& facts);

}  // namespace smp::partitioning
