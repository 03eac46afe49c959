// api/planning/show_plans.h: the end of a program that was only to be planned.
#pragma once

#include <string>
#include <vector>

#include "api/planning/planning.h"
#include "api/rank/plan_request.h"

namespace smp {

/// Prints each plan as a table, writes it and its pictures to the folder asked for (with several
/// models: to a folder within it for each), and ends the process: 0, or 1 if that failed.
/// @param candidates  candidate_table() of each model
[[noreturn]] void show_plans_and_exit(const PlanRequest& request,
                                      const std::vector<PlannedModel>& models,
                                      const std::vector<std::string>& candidates);

}  // namespace smp
