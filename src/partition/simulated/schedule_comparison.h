// partition/simulated/schedule_comparison.h: what a plan comes to under several schedules,
// simulated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "partition/simulated/planned_step.h"
#include "smp/plan.h"

namespace smp::partitioning {

/// The simulated step under one schedule.
struct ScheduleOutcome {
  std::string schedule;  ///< as the key `pipeline` names it
  double step_seconds = 0;
  double bubble = 0;
  std::vector<std::int64_t> activations;  ///< by stage, bytes: the most, whatever the timing
};

/// Splits a list such as "simple,file:own.txt" into names of schedules. "all" stands for every
/// schedule that needs no file; empty words are passed over.
[[nodiscard]] std::vector<std::string> schedules_of(const std::string& list);

/// Simulates the step under each of `schedules`.
/// @param microbatches  of a step, each as large as those of the plan; 0: as many as in the plan
/// @throws UsageError   a schedule that make_schedule() refuses; a plan for other stages or modules
///                      than the step
[[nodiscard]] std::vector<ScheduleOutcome> compare_schedules(
    const PartitionPlan& plan, const PlannedStep& step, const std::vector<std::string>& schedules,
    int microbatches);

/// Returns the outcomes as a table for people, at most 100 columns wide.
/// @param times  true if the seconds were measured; else they are shown as multiples of the fewest
[[nodiscard]] std::string comparison_table(const std::vector<ScheduleOutcome>& outcomes,
                                           const PlannedStep& step, int microbatches,
                                           bool times = true);

}  // namespace smp::partitioning
