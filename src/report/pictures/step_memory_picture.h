// report/pictures/step_memory_picture.h: what each stage holds from moment to moment of a step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "partition/simulated/plan_simulation.h"
#include "smp/plan.h"

namespace smp::report {

/// Returns the most bytes that are live in each of `columns` equal parts of a step: the moments in
/// it, and what was live as it began.
/// @param live    moments in order, none after `length`
/// @param length  of the step; above 0
[[nodiscard]] std::vector<std::int64_t> most_by_column(
    const std::vector<simulate::LiveMoment>& live, base::Nanoseconds length, int columns);

/// Returns an SVG file: a lane per stage, on one scale. At the bottom of each is what is there all
/// the time (weights, gradients, optimizer state, buffers), on it the activations as they come and
/// go; a line where they would be if nothing were computed again; and the stage's limit.
/// @param plan    must have a summary
/// @param memory  of its step
[[nodiscard]] std::string draw_step_memory(const PartitionPlan& plan,
                                           const partitioning::StepMemory& memory);

}  // namespace smp::report
