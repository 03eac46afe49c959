// partition/search/step_bound.h: a step time that no placement can go below.
#pragma once

#include "partition/model/cost_tree.h"
#include "partition/search/step_judge.h"
#include "simulate/machine.h"
#include "simulate/trace.h"

namespace smp::partitioning {

/// Returns a lower bound on the step time, in seconds. However the nodes are placed (fixed ones
/// where they are) and whatever the schedule, a step whose calls follow each other as in the trace
/// takes at least the largest of
/// - the work of a microbatch, forward and backward, on the fastest stage, but for gradients of
///   weights if some schedule puts these off;
/// - bottleneck_lower_bound() of the work of all microbatches;
/// - all work, and what stages wait at the ends of the step, over all speed: the stage that is the
///   i-th to begin has nothing to do before i other nodes have computed in some microbatch, and,
///   unless the backward is in two parts, nothing after their backward has begun in the last one.
///   Where stages share cores, only what the cores can do counts.
/// Messages count as free.
double step_lower_bound(const simulate::Trace& trace, const CostTree& costs,
                        const simulate::Machine& machine, const StepSettings& settings);

}  // namespace smp::partitioning
