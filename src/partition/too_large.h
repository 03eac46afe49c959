// partition/too_large.h: tells who lacks memory, how much, and what would help.
#pragma once

#include "partition/cost_tree.h"
#include "partition/machine.h"
#include "partition/module_tree.h"
#include "partition/step_judge.h"

namespace smp::partition {

/// The best placement that was found, and the settings that it was found for.
struct UnfitPlacement {
  const ModuleTree& tree;
  const Trace& trace;
  const CostTree& costs;
  const Machine& machine;
  const StepSettings& settings;
  const std::vector<int>& stages_of_nodes;
  const Judgement& judgement;
};

/// @throws ResourceError  always
[[noreturn]] void refuse_too_large(const UnfitPlacement& unfit);

}  // namespace smp::partition
