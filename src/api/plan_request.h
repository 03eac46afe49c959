// api/plan_request.h: a program that runs only up to its plan, as `smp plan` asks for.
#pragma once

#include <optional>
#include <string>

namespace smp {

/// What to plan for, and where to leave the plan.
struct PlanRequest {
  int ranks = 1;
  std::string folder;
};

/// Environment variables by which `smp plan` tells the program that it starts.
inline constexpr const char* kPlanRanksVariable = "SMP_PLAN_RANKS";
inline constexpr const char* kPlanFolderVariable = "SMP_PLAN_FOLDER";

/// The request that this process was started with. @throws UsageError  it makes no sense.
[[nodiscard]] std::optional<PlanRequest> plan_request();

}  // namespace smp
