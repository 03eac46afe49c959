// partition/model/hand_placement.h: what the user placed himself.
#pragma once

#include <string>
#include <vector>

#include "partition/model/module_tree.h"
#include "partition/model/pin.h"

namespace smp::partitioning {

/// The stages that pins give to modules and to all modules below them, and the reasons to report.
struct HandPlacement {
  std::vector<int> stages;           ///< by module; -1: nothing by hand
  std::vector<std::string> reasons;  ///< by module: "placed by set_partition"; empty: nothing
};

/// Follows all pins: of two pins for one path the later one wins, of nested pins the inner one.
/// @throws UsageError  pins have faults; the message lists all of them.
HandPlacement follow_pins(const ModuleTree& tree, const std::vector<Pin>& pins, int pp_size);

}  // namespace smp::partitioning
