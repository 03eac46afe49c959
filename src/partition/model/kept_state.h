// partition/model/kept_state.h: which modules keep state, seen or said.
#pragma once

#include <vector>

#include "partition/model/module_tree.h"
#include "simulate/trace.h"

namespace smp::partitioning {

/// What a trial run saw, and what the program says (ModuleNode::state_use), by module, each once.
[[nodiscard]] std::vector<simulate::StateChange> all_state(
    const ModuleTree& tree, const std::vector<simulate::StateChange>& seen);

}  // namespace smp::partitioning
