// partition/model/kept_state.h: which modules keep state, seen or said.
#pragma once

#include <vector>

#include "partition/model/module_tree.h"
#include "simulate/trace.h"

namespace smp::partitioning {

/// Returns the modules that keep state, in ascending order, each once: those that a trial run saw
/// (`seen`), and those that the program declares (ModuleNode::state_use), whose word counts more.
[[nodiscard]] std::vector<simulate::StateChange> all_state(
    const ModuleTree& tree, const std::vector<simulate::StateChange>& seen);

/// Adds to `state` what `more` tells of the same modules, each once, in ascending order: what
/// restricts a module most counts.
void add_state(std::vector<simulate::StateChange>& state,
               const std::vector<simulate::StateChange>& more);

}  // namespace smp::partitioning
