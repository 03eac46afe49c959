// partition/search/memory_diagnosis.h: who lacks memory, how much, and what would help.
#pragma once

#include "partition/model/cost_tree.h"
#include "partition/model/module_tree.h"
#include "partition/search/step_judge.h"
#include "simulate/machine.h"

namespace smp::partitioning {

/// The best placement that was found, and the settings that it was found for.
struct UnfitPlacement {
  const ModuleTree& tree;
  const simulate::Trace& trace;
  const CostTree& costs;
  const simulate::Machine& machine;
  const StepSettings& settings;
  const std::vector<int>& stages_of_nodes;
  const Judgement& judgement;
  bool all_by_hand;         ///< every module was placed by hand, nothing was left to place
  int active_microbatches;  ///< of "interleaved", also if "simple" is in use
};

/// @throws ResourceError  always; says whether no placement can fit
/// (partition/search/memory_bound.h) or
///                        none was found, which stages lack how much, and what would help: only
///                        what was tried out on the same placement
[[noreturn]] void throw_memory_diagnosis(const UnfitPlacement& unfit);

}  // namespace smp::partitioning
