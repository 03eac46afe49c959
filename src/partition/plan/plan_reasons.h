// partition/plan/plan_reasons.h: why modules are where they are, in words.
#pragma once

#include <string>
#include <vector>

#include "partition/model/cost_tree.h"
#include "simulate/machine.h"

namespace smp::partitioning {

struct PlanReasons {
  std::vector<std::string> modules;  ///< by module; empty where a parent or neighbour explains it
  std::vector<std::string> stages;   ///< by stage, why it begins where it does
};

/// Explains a placement in words.
/// @param stages   the stage of every module of the tree
/// @param by_hand  by module, what placed it by hand: "placed by set_partition"; else empty
/// @param memory   by stage, the bytes that it will hold
PlanReasons plan_reasons(const ModuleTree& tree, const simulate::Trace& trace,
                         const CostTree& costs, const simulate::Machine& machine,
                         const std::vector<int>& stages, const std::vector<std::string>& by_hand,
                         const std::vector<std::int64_t>& memory);

}  // namespace smp::partitioning
