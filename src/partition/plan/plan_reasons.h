// partition/plan/plan_reasons.h: why modules are where they are, in words.
#pragma once

#include <string>
#include <vector>

#include "partition/model/cost_tree.h"
#include "simulate/machine.h"

namespace smp::partitioning {

struct PlanReasons {
  std::vector<std::string> modules;  ///< by module; empty where a parent or neighbour explains it
  std::vector<std::string> stages;   ///< why each begins where it does
};

/// @param stages   of every module of the tree
/// @param by_hand  per module what put it there by hand, "placed by set_partition", or empty
/// @param memory   bytes each stage will hold
PlanReasons plan_reasons(const ModuleTree& tree, const simulate::Trace& trace,
                         const CostTree& costs, const simulate::Machine& machine,
                         const std::vector<int>& stages, const std::vector<std::string>& by_hand,
                         const std::vector<std::int64_t>& memory);

}  // namespace smp::partitioning
