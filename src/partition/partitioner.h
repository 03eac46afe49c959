// partition/partitioner.h: from a model and the user's wishes to a plan. Pure functions: every rank
// comes to the same plan by itself.
#pragma once

#include <string>
#include <vector>

#include "partition/module_tree.h"
#include "partition/pin.h"
#include "smp/plan.h"

namespace smp::partition {

struct PartitionOptions {
  int pp_size = 1;
  std::vector<Pin> pins;
  /// Split what has no pin evenly; else it goes to `default_partition`.
  bool auto_partition = true;
  int default_partition = 0;
};

/// Places every module. What has no pin is cut, in the order of registration, into consecutive runs
/// of modules with nearly equal parameter bytes; tied weights stay together; the model itself is on
/// stage 0, and so are modules whose parts are spread.
/// @throws UsageError     all faults of the pins at once: an unknown path (with the nearest), a
/// stage out of
///                        range, a module that cannot leave its parent, tied weights on two stages.
/// @throws ResourceError  more stages than modules to place.
PartitionPlan make_plan(const ModuleTree& tree, const PartitionOptions& options);

}  // namespace smp::partition
