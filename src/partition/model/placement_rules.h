// partition/model/placement_rules.h: what no placement may break, whoever made it.
#pragma once

#include <string>
#include <vector>

#include "partition/model/module_tree.h"

namespace smp::partitioning {

/// Returns the faults of a placement, one line each: a stage out of range, a module apart from a
/// parent that it cannot leave, tied weights on two stages.
/// @param stages   the stage of every module of the tree; -1: not placed yet, and no fault
/// @param reasons  by module, what placed it: "pinned by set_partition"; empty: not by hand
std::vector<std::string> placement_faults(const ModuleTree& tree, const std::vector<int>& stages,
                                          int pp_size, const std::vector<std::string>& reasons);

/// Returns, by parameter, the modules that hold it or a view of it.
std::vector<std::vector<int>> holders_of_parameters(const ModuleTree& tree);

/// Returns `lead` with the faults as a message: on one line if there is one fault, else as a
/// numbered list.
std::string list_of_faults(const std::string& lead, const std::vector<std::string>& faults);

}  // namespace smp::partitioning
