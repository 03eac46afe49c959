// smp/program/saved_plan.h: a plan and how its run trains in one file, from which another run does
// the same (docs/plans.md).
#pragma once

#include <string>

#include "smp/detail/export.h"

namespace smp {

class DistributedModelBase;

/// Writes a plan file: the stage of every module of `model`, and how this run trains it, which is
/// the schedule with its numbers of microbatches, the modes, what its numbers depend on, and the
/// routes between ranks, by size of tensor. A run that is given the file as `plan_file` does the
/// same, whatever its own defaults are. The plan.json of a run folder (smp::RunLog) is such a file.
///
/// Every rank calls it, outside of steps; rank 0 writes, and an error is thrown on all ranks.
/// Thread: the rank's.
/// @throws UsageError     the model has no plan yet, or it is called in a step
/// @throws ResourceError  the file cannot be written
SMP_API void save_plan(const DistributedModelBase& model, const std::string& path);

}  // namespace smp
