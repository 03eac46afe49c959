// partition/model/stage_use.h: every stage should have something to run.
#pragma once

#include <vector>

#include "partition/model/cost_tree.h"
#include "simulate/machine.h"

namespace smp::partitioning {

/// Nodes that give a stage something to do: all but the model itself, which does too if it has
/// weights of its own.
struct StageUse {
  int free = 0;    ///< nodes that may go anywhere
  int served = 0;  ///< stages that have something fixed to them
};
StageUse stage_use(const CostTree& tree, const simulate::Machine& machine);

/// Whether every stage has something to do.
bool every_stage_used(const CostTree& tree, const simulate::Machine& machine,
                      const std::vector<int>& stages_of_nodes);

/// Gives every idle stage the largest node that another stage can spare. Enough nodes must exist.
std::vector<int> use_every_stage(const CostTree& tree, const simulate::Machine& machine,
                                 std::vector<int> stages_of_nodes);

}  // namespace smp::partitioning
