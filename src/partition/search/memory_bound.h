// partition/search/memory_bound.h: the share of its memory that some stage needs in every
// placement.
#pragma once

#include "partition/model/cost_tree.h"
#include "partition/model/module_tree.h"
#include "partition/search/step_judge.h"
#include "simulate/machine.h"

namespace smp::partitioning {

/// Bytes of weights, gradients, optimizer state and buffers of a node.
double state_bytes(const CostNode& node, double optimizer_ratio, int gradient_copies = 1);

/// Returns the share of its memory that some stage needs at least, whatever the placement; above 1
/// no placement fits. Memory is what the buffers that every rank holds leave of the limit, counted
/// as by predict_memory(). Computed as bottleneck_lower_bound(), with bytes for costs (state, and
/// what autograd keeps of the microbatches that every stage keeps at once) and memory for speed.
/// Infinite if the buffers that every rank holds do not fit some stage.
/// @param machine  must have a memory limit for every stage
double memory_lower_bound(const ModuleTree& tree, const CostTree& costs,
                          const simulate::Machine& machine, const StepSettings& settings);

}  // namespace smp::partitioning
