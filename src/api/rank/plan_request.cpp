// api/rank/plan_request.cpp: reads the two environment variables.
#include "api/rank/plan_request.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "base/check.h"

namespace smp {
namespace {

std::string variable_or(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

/// Returns the number in `text`. @throws UsageError  it is no number, or less than `least`
int number_in(const char* name, std::string_view text, int least, const char* what) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), number);
  SMP_REQUIRE(error == std::errc() && end == text.end() && number >= least, name, "=", text,
              ": expected the number of ", what, ", ", least, " or more");
  return number;
}

}  // namespace

std::optional<PlanRequest> plan_request() {
  const char* ranks = std::getenv(kPlanRanksVariable);
  if (ranks == nullptr) return std::nullopt;
  PlanRequest request;
  request.ranks = number_in(kPlanRanksVariable, ranks, 1, "ranks to plan for");
  request.folder = variable_or(kPlanFolderVariable, ".");
  request.schedules = variable_or(kPlanSchedulesVariable, "");
  const auto microbatches = variable_or(kPlanMicrobatchesVariable, "0");
  request.microbatches = number_in(kPlanMicrobatchesVariable, microbatches, 0,
                                   "microbatches to compare schedules for");
  return request;
}

}  // namespace smp
