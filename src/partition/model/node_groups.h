// partition/model/node_groups.h: which modules are placed as one ModuleNode (paper App. C.2).
#pragma once

#include <vector>

#include "partition/model/module_tree.h"
#include "simulate/trace.h"

namespace smp::partitioning {

/// The groups of modules that are placed as one. The first module of a group names it.
struct NodeGroups {
  std::vector<int> first;  ///< of every module: the first module of its group
  std::vector<int> fixed;  ///< of every module: the stage its group is fixed to, or -1
};

/// Joins
/// - modules that share a weight, by holding it or by using it (connected components);
/// - modules that use a buffer which not all ranks can hold;
/// - a module that cannot leave its parent with the parent;
/// - a module with no weight below it, unless the user placed it or no module has weights, with its
///   parent: a request would cost more than it computes. In a Sequential it goes with the sibling
///   before it (the first with the one after it), where its input lies already: with the parent it
///   would tear a run of neighbours in two;
/// - a module that keeps state which others may read, with its parent, whose parent and so on: the
///   readers are above it, up to the step's body on stage 0.
///
/// The model itself is fixed to stage 0.
/// @param state  the modules that keep state, as in Trace::state
/// @param fixed  for each module the stage it was put on by hand, or -1
/// @throws UsageError  modules of one group are fixed to different stages; names all such pairs.
NodeGroups group_modules(const ModuleTree& tree,
                         const std::vector<simulate::WeightUse>& foreign_uses,
                         const std::vector<int>& fixed,
                         const std::vector<simulate::BufferUse>& buffer_uses = {},
                         const std::vector<simulate::StateChange>& state = {});

}  // namespace smp::partitioning
