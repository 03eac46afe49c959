// partition/even_split.h: cuts a model into stages of nearly equal parameter bytes (a simple
// relative of Alg. 1, until modules are traced).
#pragma once

#include <vector>

#include "partition/module_tree.h"

namespace smp::partition {

/// The stage of every module.
/// @param fixed  for each module the stage it was put on by hand, or -1
/// @throws ResourceError  more stages than pieces to place.
std::vector<int> even_split(const ModuleTree& tree, const std::vector<int>& fixed, int pp_size);

}  // namespace smp::partition
