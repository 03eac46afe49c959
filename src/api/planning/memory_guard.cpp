// api/planning/memory_guard.cpp: see the header.
#include "api/planning/memory_guard.h"

#include <algorithm>
#include <cstdio>

#include "api/rank/rank.h"
#include "base/check.h"
#include "base/log.h"
#include "base/memory/machine_memory.h"

namespace smp {
namespace {

std::string gib(std::int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

/// Returns the stage that each rank of this machine runs.
std::vector<int> stages_here(const Topology& topology) {
  std::vector<int> stages;
  for (const int rank : topology.group(Group::kLocal)) {
    const auto pipeline = topology.group(Group::kPp, rank);
    const auto found = std::find(pipeline.begin(), pipeline.end(), rank);
    stages.push_back(static_cast<int>(found - pipeline.begin()));
  }
  return stages;
}

}  // namespace

std::optional<std::string> too_little_memory(const std::vector<PlannedModel>& models,
                                             const std::vector<int>& stages,
                                             std::int64_t available) {
  std::int64_t needed = 0;
  for (const auto& model : models) {
    if (!model.plan.summary()) continue;
    const auto& of_stages = model.plan.summary()->stages;
    for (const int stage : stages) {
      if (stage < static_cast<int>(of_stages.size())) needed += of_stages[stage].memory();
    }
  }
  if (available == 0 || needed <= available) return std::nullopt;
  return base::concat(
      "the plan needs about ", gib(needed), " on this machine, for ", stages.size(),
      " of its ranks, and it has ", gib(available),
      " (its memory, or its cgroup's limit): the kernel may end a rank with signal "
      "9; use more machines, fewer microbatches in flight (active_microbatches, with "
      "pipeline = interleaved), or a smaller batch; stage_memory makes plans that fit or are "
      "refused");
}

void warn_of_too_little_memory(const Rank& rank, const std::vector<PlannedModel>& models) {
  const auto& topology = rank.topology();
  if (rank.parts().plan_request || topology.local_rank() != 0) return;
  const auto text = too_little_memory(models, stages_here(topology), base::machine_memory());
  if (text) base::log(base::LogLevel::kWarning, *text);
}

}  // namespace smp
