// api/planning/memory_shares.cpp: see the header.
#include "api/planning/memory_shares.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace smp {

simulate::Machine with_part_of_memory(simulate::Machine machine, const std::vector<double>& needs,
                                      std::size_t model) {
  const double all = std::accumulate(needs.begin(), needs.end(), 0.0);
  const double share = all > 0 ? needs[model] / all : 1.0 / static_cast<double>(needs.size());
  for (auto& bytes : machine.memory) {
    const auto part = static_cast<std::int64_t>(share * static_cast<double>(bytes));
    bytes = std::max<std::int64_t>(1, needs.size() == 1 ? bytes : part);
  }
  return machine;
}

std::vector<std::int64_t> memory_left(const simulate::Machine& machine,
                                      const std::vector<std::optional<PlannedModel>>& plans) {
  auto left = machine.memory;
  for (const auto& planned : plans) {
    if (!planned || !planned->plan.summary()) continue;
    const auto& stages = planned->plan.summary()->stages;
    for (std::size_t stage = 0; stage < left.size(); ++stage) {
      left[stage] = std::max<std::int64_t>(1, left[stage] - stages.at(stage).most_memory());
    }
  }
  return left;
}

}  // namespace smp
