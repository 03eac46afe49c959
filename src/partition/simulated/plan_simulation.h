// partition/simulated/plan_simulation.h: the step that a plan promises, to be looked at.
#pragma once

#include <vector>

#include "partition/search/partitioner.h"
#include "partition/simulated/planned_step.h"
#include "simulate/simulator.h"

namespace smp::partitioning {

/// Simulates a step under `plan` and returns it with the spans of every stage. If there are very
/// many microbatches, it simulates only as many as a picture can show.
/// @param options  the options that the plan was made with
[[nodiscard]] simulate::SimulatedStep simulate_plan(const ModuleTree& tree,
                                                    const PartitionOptions& options,
                                                    const PartitionPlan& plan);

/// What is live on every stage over a step, beyond weights, their gradients and optimizer state.
struct StepMemory {
  using OfStages = std::vector<std::vector<simulate::LiveMoment>>;
  base::Nanoseconds length = 0;  ///< of the step; of the longer one of two
  OfStages live;
  OfStages held;  ///< if nothing were computed again; empty: nothing is
};

/// Simulates the step that `plan` was made for, or as much of it as a picture can show.
/// @throws UsageError  the plan is not one for this step
[[nodiscard]] StepMemory simulate_memory(const PartitionPlan& plan, const PlannedStep& step);

}  // namespace smp::partitioning
