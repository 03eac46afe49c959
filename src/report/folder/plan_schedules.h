// report/folder/plan_schedules.h: `smp plan FILE --schedule ...`: a plan of a folder under other
// schedules.
#pragma once

#include <string>

namespace smp::report {

/// Simulates the plan under each schedule of `schedules` and returns the results as a table.
/// @param plan_file     the plan.json of a run or of `smp plan`; the step that was simulated for it
///                      is read from the trace-simulated.json beside it
/// @param schedules     as partitioning::schedules_of() reads them
/// @param microbatches  of a step; 0: as many as in the plan
/// @throws UsageError   a file is missing or broken, or a schedule is
[[nodiscard]] std::string schedules_table(const std::string& plan_file,
                                          const std::string& schedules, int microbatches);

}  // namespace smp::report
