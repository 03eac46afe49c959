// partition/model/stage_use.h: every stage should have something to run.
#pragma once

#include <vector>

#include "partition/model/cost_tree.h"
#include "simulate/machine.h"

namespace smp::partitioning {

/// A count of the nodes that give a stage something to run: all nodes, but the model itself only if
/// it has weights of its own.
struct StageUse {
  int free = 0;    ///< nodes that may go anywhere
  int served = 0;  ///< stages that have something fixed to them
};
StageUse stage_use(const CostTree& tree, const simulate::Machine& machine);

/// True if every stage has something to run.
bool every_stage_used(const CostTree& tree, const simulate::Machine& machine,
                      const std::vector<int>& stages_of_nodes);

/// Gives every idle stage the largest node that another stage can spare. Enough nodes must exist.
std::vector<int> use_every_stage(const CostTree& tree, const simulate::Machine& machine,
                                 std::vector<int> stages_of_nodes);

}  // namespace smp::partitioning
