// api/rank/rank_parts.cpp: see the header.
#include "api/rank/rank_parts.h"

#include <utility>

namespace smp {

std::vector<GlobalRank> RankParts::ranks_there(Group which) const {
  if (plan_request) return {GlobalRank(topology.rank())};
  return ranks_of(topology, which);
}

partitioning::PlanFile plan_file_of(const base::ResolvedConfig& config) {
  if (config.plan_text().empty()) return {};
  return partitioning::plan_file_of(config.plan_text(), config.values().plan_file);
}

std::vector<GlobalRank> ranks_of(const Topology& topology, Group which) {
  std::vector<GlobalRank> ranks;
  for (const int rank : topology.group(which)) ranks.emplace_back(rank);
  return ranks;
}

std::unique_ptr<server::Watchdog::Session> watch_ranks(const Config& config,
                                                       std::function<void()> end_job) {
  const server::Watchdog::Limits limits{config.stall_seconds, config.abort_seconds,
                                        server::Watchdog::grace_after(config.abort_seconds)};
  return std::make_unique<server::Watchdog::Session>(limits, std::move(end_job));
}

}  // namespace smp
