// partition/simulated/schedule_comparison.h: what a plan comes to under several schedules,
// simulated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "partition/simulated/planned_step.h"
#include "smp/plan.h"

namespace smp::partitioning {

/// One schedule.
struct ScheduleOutcome {
  std::string schedule;  ///< as the key `pipeline` names it
  double step_seconds = 0;
  double bubble = 0;
  std::vector<std::int64_t> activations;  ///< by stage: the most, whatever the timing
};

/// "simple,file:own.txt" to names; "all" stands for every one that needs no file, and empty words
/// for nothing.
[[nodiscard]] std::vector<std::string> schedules_of(const std::string& list);

/// @param microbatches  of a step, each as large as those of the plan; 0: as many as in the plan
/// @throws UsageError   a schedule that make_schedule() refuses; a plan for other stages or modules
///                      than the step
[[nodiscard]] std::vector<ScheduleOutcome> compare_schedules(
    const PartitionPlan& plan, const PlannedStep& step, const std::vector<std::string>& schedules,
    int microbatches);

/// For people; at most 100 columns.
/// @param times  whether the seconds mean anything; else they are told as multiples of the fewest
[[nodiscard]] std::string comparison_table(const std::vector<ScheduleOutcome>& outcomes,
                                           const PlannedStep& step, int microbatches,
                                           bool times = true);

}  // namespace smp::partitioning
