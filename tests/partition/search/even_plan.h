// Plans for tests that need any plan: runs of modules in the order of registration.
#pragma once

#include <vector>

#include "partition/model/count_trace.h"
#include "partition/plan/plan_check.h"
#include "partition/search/partitioner.h"
#include "partition/search/strategies.h"
#include "partition/search/tree_builder.h"

namespace smp::partitioning {

/// Runs with nearly equal bytes.
inline PartitionPlan even_plan(const ModuleTree& tree, int pp_size) {
  const CostTree costs =
      make_cost_tree(tree, count_trace(tree), nothing_fixed(tree), {.memory_weight = 1});
  const auto stages = stages_of_modules(costs, contiguous_partition(costs, {.stages = pp_size}));
  return plan_of(tree, stages, pp_size);
}

}  // namespace smp::partitioning
