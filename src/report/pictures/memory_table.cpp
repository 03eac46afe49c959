// report/pictures/memory_table.cpp: stage by stage, as far as one of the two lists goes.
#include "report/pictures/memory_table.h"

#include <algorithm>

#include "base/check.h"
#include "partition/text/short_text.h"

namespace smp::report {
namespace {

using partitioning::short_bytes;

constexpr const char* kNothing = "-";

}  // namespace

std::vector<std::vector<std::string>> memory_rows(const MemoryUse& measured,
                                                  const PlanSummary* predicted) {
  const auto promised = predicted == nullptr ? 0 : predicted->stages.size();
  const auto stages = std::max(measured.size(), promised);
  if (stages == 0) return {};
  std::vector<std::vector<std::string>> rows = {{"memory", "measured", "predicted", "at most"}};
  for (std::size_t stage = 0; stage < stages; ++stage) {
    auto& cells = rows.emplace_back(4, kNothing);
    cells[0] = base::concat("stage ", stage);
    if (stage < measured.size() && measured[stage] > 0) cells[1] = short_bytes(measured[stage]);
    if (stage >= promised) continue;
    cells[2] = short_bytes(predicted->stages[stage].memory());
    cells[3] = short_bytes(predicted->stages[stage].most_memory());
  }
  return rows;
}

}  // namespace smp::report
