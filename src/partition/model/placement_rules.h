// partition/model/placement_rules.h: what no placement may break, whoever made it.
#pragma once

#include <string>
#include <vector>

#include "partition/model/module_tree.h"

namespace smp::partitioning {

/// Faults of a placement, one line each: a stage out of range, a module apart from a parent that it
/// cannot leave, tied weights on two stages.
/// @param stages  of every module of the tree; -1: not placed yet, and no fault
/// @param reasons  per module, what put it there: "pinned by set_partition"; empty: nothing by hand
std::vector<std::string> placement_faults(const ModuleTree& tree, const std::vector<int>& stages,
                                          int pp_size, const std::vector<std::string>& reasons);

/// The modules that hold each parameter, or views of it.
std::vector<std::vector<int>> holders_of_parameters(const ModuleTree& tree);

/// One line, or a counted list.
std::string list_of_faults(const std::string& lead, const std::vector<std::string>& faults);

}  // namespace smp::partitioning
