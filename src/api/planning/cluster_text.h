// api/planning/cluster_text.h: what a plan for a cluster comes to beyond the step of one pipeline.
#pragma once

#include <string>

#include "base/cluster/cluster.h"
#include "simulate/machine.h"
#include "smp/plan.h"

namespace smp {

/// Returns lines for people: the nodes of the cluster, what rings of tensor-parallel ranks and of
/// replicas pass a second, and how long the job's step is: that of the pipeline, and then the sums
/// of gradients over replicas, in full.
/// @param machine  as place_on() made it
[[nodiscard]] std::string cluster_text(const base::Cluster& cluster,
                                       const simulate::Machine& machine, const PartitionPlan& plan);

}  // namespace smp
