// api/plan_request.cpp: reads the two environment variables.
#include "api/plan_request.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "base/check.h"

namespace smp {

std::optional<PlanRequest> plan_request() {
  const char* ranks = std::getenv(kPlanRanksVariable);
  if (ranks == nullptr) return std::nullopt;
  const std::string_view text(ranks);
  PlanRequest request;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), request.ranks);
  SMP_REQUIRE(error == std::errc() && end == text.end() && request.ranks >= 1, kPlanRanksVariable,
              "=", text, ": expected the number of ranks to plan for, 1 or more");
  const char* folder = std::getenv(kPlanFolderVariable);
  request.folder = folder == nullptr ? "." : folder;
  return request;
}

}  // namespace smp
