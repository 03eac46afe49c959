// api/planning/job_machine.h: the machine that a job runs on, as the partitioner and the simulator
// see it.
#pragma once

#include <vector>

#include "simulate/machine.h"
#include "smp/topology.h"

namespace smp {

class Rank;

/// Speeds, devices and memory as configured, or the memory of the devices, or that of this machine,
/// where every host is taken to have as much; hosts with fewer cores than ranks; nodes as
/// configured or as the job runs, and sockets as ranks are bound to them; messages as usual, or as
/// measured with `trace_repeats`; replicas of the pipeline, and ranks that share modules; on a
/// cluster that a plan is made for, as it has them (cluster_machine.h). Called by
/// all pp ranks at once, outside of steps, since it may measure; what was measured is known on
/// pp_rank 0 only.
[[nodiscard]] simulate::Machine job_machine(Rank& rank);

/// Whether replicas add up gradients while backward still runs: on cores only, and if it is wished
/// (dp/early_buckets.h).
[[nodiscard]] bool begins_sums_early(const Rank& rank, const simulate::Machine& machine);

/// Returns the places of stages on these nodes and sockets, where the network adapters of a node
/// are dealt to its stages in turn; empty if all are on one socket of one node.
/// @param sockets  the socket of each stage on its node; -1: on any
[[nodiscard]] std::vector<simulate::Machine::Place> places_of(const std::vector<int>& nodes,
                                                              const std::vector<int>& sockets,
                                                              int ports);

/// Returns the hosts on which more ranks compute on CPU cores than `places`, the number of ranks
/// that can compute at once: cores over threads of a rank. Ranks of other pipelines get their
/// share; every host has as many places.
[[nodiscard]] std::vector<simulate::Machine::Host> oversubscribed_hosts(
    const Topology& topology, double places, const simulate::Machine& machine);

}  // namespace smp
