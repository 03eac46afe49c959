// partition/simulated/plan_simulation.h: the step that a plan promises, to be looked at.
#pragma once

#include "partition/search/partitioner.h"
#include "simulate/simulator.h"

namespace smp::partitioning {

/// Simulates a step under `plan` and returns it with the spans of every stage. If there are very
/// many microbatches, it simulates only as many as a picture can show.
/// @param options  the options that the plan was made with
[[nodiscard]] simulate::SimulatedStep simulate_plan(const ModuleTree& tree,
                                                    const PartitionOptions& options,
                                                    const PartitionPlan& plan);

}  // namespace smp::partitioning
