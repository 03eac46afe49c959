// partition/plan/plan_json.h: the members of plan.json. For .cpp files only: it is slow to compile.
#pragma once

#include <string>

#include "config/json.h"
#include "smp/plan.h"

namespace smp::partitioning {

/// Its stage alone if there is nothing else to say, as of a dropout; else an object.
base::Json row_to_json(const PartitionPlan::Row& row);
/// @param name  of the file, leads the messages. @throws UsageError
PartitionPlan::Row row_from_json(const std::string& path, const base::Json& value,
                                 const std::string& name);

/// Numbers are rounded, so that a file that was read is written again as it was.
base::Json summary_to_json(const PlanSummary& summary);
/// @throws UsageError  a member is missing or of another type.
PlanSummary summary_from_json(const base::Json& json, const std::string& name);

}  // namespace smp::partitioning
