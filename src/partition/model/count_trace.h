// partition/model/count_trace.h: what stands for a trace where nothing was run.
#pragma once

#include "partition/model/module_tree.h"
#include "simulate/trace.h"

namespace smp::partitioning {

/// Every module is called once, by its parent, in the order of registration, and takes as long as
/// every other one: so that a plan can be made without a step (skip_tracing).
[[nodiscard]] simulate::Trace count_trace(const ModuleTree& tree);

/// What a plan, its simulation and the step saved with it are made from: `traced`, or that where it
/// calls nothing. What the program says about state counts whether anything was run or not.
[[nodiscard]] simulate::Trace trace_to_plan(const ModuleTree& tree, const simulate::Trace& traced);

}  // namespace smp::partitioning
