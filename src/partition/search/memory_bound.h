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

/// Whatever the placement, some stage needs at least this share of the memory that buffers of every
/// rank leave it, as the memory model counts it (predict_memory()): above 1 no placement fits. As
/// bottleneck_lower_bound(), with bytes for costs and memory for speed: state, and what autograd
/// keeps of the microbatches that every stage keeps at once. Infinite if some stage has no memory
/// for what every rank holds.
/// @param machine  with a limit for every stage
double memory_lower_bound(const ModuleTree& tree, const CostTree& costs,
                          const simulate::Machine& machine, const StepSettings& settings);

}  // namespace smp::partitioning
