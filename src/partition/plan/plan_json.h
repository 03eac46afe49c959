// partition/plan/plan_json.h: the members of plan.json. For .cpp files only: it is slow to compile.
#pragma once

#include <string>

#include "config/json.h"
#include "smp/plan.h"

namespace smp::partitioning {

/// Returns a row of the plan as JSON: the stage alone if there is nothing else to say, as for a
/// dropout; else an object.
base::Json row_to_json(const PartitionPlan::Row& row);
/// Reads a row of the plan.
/// @param name  the plan's file, leads the messages
/// @throws UsageError  the value is neither a stage nor an object with right members
PartitionPlan::Row row_from_json(const std::string& path, const base::Json& value,
                                 const std::string& name);

/// Returns the summary as JSON. Numbers are rounded, so that a file that was read is written again
/// as it was.
base::Json summary_to_json(const PlanSummary& summary);
/// Reads a summary.
/// @throws UsageError  a member is missing or has another type
PlanSummary summary_from_json(const base::Json& json, const std::string& name);

/// Returns the text of a plan's file.
/// @param run  the member that says how a run trained, as lines (run_record.h); empty: none
std::string plan_text(const PartitionPlan& plan, const std::string& run);

}  // namespace smp::partitioning
