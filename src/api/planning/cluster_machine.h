// api/planning/cluster_machine.h: a job on a cluster that is known by name, as the partitioner and
// the simulator see it.
#pragma once

#include <optional>

#include "base/cluster/cluster.h"
#include "simulate/machine.h"
#include "smp/topology.h"

namespace smp {

/// Environment variable by which `smp plan` names the cluster to the program that it starts, beside
/// those of api/rank/plan_request.h.
inline constexpr const char* kPlanClusterVariable = "SMP_PLAN_CLUSTER";

/// Returns the cluster that this process was started to plan for; nothing if none is named.
/// @throws UsageError  it is not known, or has another number of ranks than the job
[[nodiscard]] std::optional<base::Cluster> planned_cluster(const Topology& topology);

/// Puts the ranks of a job on a cluster, the n-th rank on the n-th core: says where the stages of
/// the first pipeline are, what links them, and how fast replicas of a stage, and ranks that share
/// its modules, pass bytes around rings if all of the job do so at once.
/// @param machine  `stages`, `devices` and `memory` stay
void place_on(const base::Cluster& cluster, const Topology& topology, simulate::Machine& machine);

}  // namespace smp
