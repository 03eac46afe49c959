// report/folder/plan_schedules.cpp: finds the step beside the plan.
#include "report/folder/plan_schedules.h"

#include <filesystem>

#include "base/check.h"
#include "base/files.h"
#include "config/json.h"
#include "partition/simulated/schedule_comparison.h"
#include "report/analysis/trace_file.h"
#include "report/folder/run_folder.h"

namespace smp::report {
namespace {

partitioning::PlannedStep step_beside(const std::string& plan_file) {
  const auto path = (std::filesystem::path(plan_file).parent_path() / kSimulationFile).string();
  SMP_REQUIRE(base::file_exists(path), plan_file, ": there is no ", path,
              ", which says what a step does; plan the program: smp plan --ranks N -- PROGRAM");
  const auto json = base::read_json(path);
  SMP_REQUIRE(json.is_object() && json.contains(kStepMember), path, ": there is no \"", kStepMember,
              "\": it was written by an older version; plan the program again: smp plan --ranks N "
              "-- PROGRAM");
  return partitioning::PlannedStep::from_json(json[kStepMember].dump(), path);
}

}  // namespace

std::string schedules_table(const std::string& plan_file, const std::string& schedules,
                            int microbatches) {
  const auto names = partitioning::schedules_of(schedules);
  SMP_REQUIRE(!names.empty(), "--schedule needs names, such as all, or simple,file:own.txt");
  const auto plan = PartitionPlan::read(plan_file);
  const auto step = step_beside(plan_file);
  try {
    const auto outcomes = partitioning::compare_schedules(plan, step, names, microbatches);
    const bool counted = plan.summary() && plan.summary()->costs == "counts";
    return partitioning::comparison_table(outcomes, step, microbatches, !counted);
  } catch (const UsageError& error) {
    throw UsageError(base::concat(plan_file, ": ", error.what()));
  }
}

}  // namespace smp::report
