// api/rank/plan_request.h: a program that runs only up to its plan, as `smp plan` asks for.
#pragma once

#include <optional>
#include <string>

namespace smp {

/// A request for a plan, and where to leave the plan.
struct PlanRequest {
  int ranks = 1;
  std::string folder;
  std::string schedules;  ///< schedules to compare (report/folder/plan_schedules.h); empty: none
  int microbatches = 0;   ///< microbatches of a step, for the comparison; 0: as planned
};

/// Environment variables by which `smp plan` passes the request to the program that it starts.
inline constexpr const char* kPlanRanksVariable = "SMP_PLAN_RANKS";
inline constexpr const char* kPlanFolderVariable = "SMP_PLAN_FOLDER";
inline constexpr const char* kPlanSchedulesVariable = "SMP_PLAN_SCHEDULES";
inline constexpr const char* kPlanMicrobatchesVariable = "SMP_PLAN_MICROBATCHES";

/// Returns the request that this process was started with; nothing if there is none.
/// @throws UsageError  it makes no sense.
[[nodiscard]] std::optional<PlanRequest> plan_request();

}  // namespace smp
