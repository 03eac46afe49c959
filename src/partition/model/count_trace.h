// partition/model/count_trace.h: what stands for a trace where nothing was run.
#pragma once

#include "partition/model/module_tree.h"
#include "simulate/trace.h"

namespace smp::partitioning {

/// Returns an invented trace, so that a plan can be made without running a step (skip_tracing):
/// every module is called once, by its parent, in the order of registration, and takes as long as
/// every other one.
[[nodiscard]] simulate::Trace count_trace(const ModuleTree& tree);

/// Returns the trace that a plan, its simulation and the step saved with it are made from:
/// `traced`, or count_trace() if `traced` has no calls. State that the program declares
/// (smp/state.h) is added in both cases.
[[nodiscard]] simulate::Trace trace_to_plan(const ModuleTree& tree, const simulate::Trace& traced);

}  // namespace smp::partitioning
