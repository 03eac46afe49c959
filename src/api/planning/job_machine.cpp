// api/planning/job_machine.cpp: configuration and topology to stages, hosts and messages.
#include "api/planning/job_machine.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "api/planning/cluster_machine.h"
#include "api/planning/message_probe.h"
#include "api/rank/exchange.h"
#include "api/rank/rank.h"
#include "base/machine/cpu_socket.h"
#include "base/machine/device.h"
#include "base/memory/device_memory.h"
#include "base/memory/machine_memory.h"
#include "d2d/wires/cuda/cuda_driver.h"

namespace smp {
namespace {

/// Seconds until a message is seen by a rank that must get a core first, as 4 idle ranks on 2 cores
/// measure it (perf/results/simulator.json).
constexpr double kLatencyWithoutCore = 200e-6;

/// Bandwidth of a tensor that is lent. Nothing is copied, but its first reader fetches it from
/// memory that another core wrote: 4 MiB in 170 us on a quiet machine (`lent_tensor_and_read` in
/// perf/results/d2d.json, which is of a slower day).
constexpr double kLentBytesPerSecond = 25e9;

/// Bandwidth of what collectives move, which is copied; assumed to be that of tensors that are not
/// lent.
constexpr double kCopiedBytesPerSecond = 4e9;

/// Seconds from a message's start at a network adapter until the peer can act on it; assumed, for
/// Ethernet or InfiniBand between machines of one room.
constexpr double kNetworkLatency = 30e-6;

/// Part of the bandwidth within a socket that is there between sockets, where data is read over the
/// link between them; assumed.
constexpr double kSocketShare = 0.65;

bool computes_on_cores(const simulate::Machine& machine, int stage) {
  return machine.devices.empty() || machine.devices[stage] == base::devices().front().name;
}

/// That of the devices; of a core its part of this machine's, also where nothing else is known of
/// the machines.
std::vector<std::int64_t> memory_of_devices(const Rank& rank,
                                            const std::vector<std::string>& devices) {
  const auto ranks = rank.topology().group(Group::kPp);
  std::vector<std::int64_t> memory;
  for (std::size_t stage = 0; stage < devices.size(); ++stage) {
    const auto own = base::find_device(devices[stage])->memory_bytes;
    const auto neighbours = rank.topology().group(Group::kLocal, ranks[stage]).size();
    memory.push_back(own > 0 ? own
                             : base::machine_memory() / static_cast<std::int64_t>(neighbours));
  }
  if (std::find(memory.begin(), memory.end(), 0) != memory.end()) memory.clear();
  return memory;
}

/// Of the accelerators that the ranks of this job compute on, all like this rank's and shared by as
/// many. Empty: nothing is known. All ranks call it.
std::vector<std::int64_t> memory_of_accelerators(const Rank& rank) {
  const auto device = rank.parts().device;
  const auto own = d2d::identity_of(device);
  const auto all = gather_values(rank.groups().of(Group::kLocal), own, "GPUs of this machine");
  const auto bytes = base::device_memory(device) / std::count(all.begin(), all.end(), own);
  if (bytes == 0) return {};
  return std::vector<std::int64_t>(static_cast<std::size_t>(rank.topology().pp_size()), bytes);
}

/// As configured; else that of the devices; else that of this machine, of which every rank on a
/// host gets the same. A job that is only planned runs elsewhere: nothing is known of its machines.
std::vector<std::int64_t> memory_of_stages(const Rank& rank,
                                           const std::vector<std::string>& devices) {
  const auto& configured = rank.config().stage_memory;
  const auto ranks = rank.topology().group(Group::kPp);
  std::vector<std::int64_t> memory;
  for (const double gib : configured) {
    memory.push_back(static_cast<std::int64_t>(gib * (1 << 30)));
  }
  if (memory.size() == 1) memory.assign(ranks.size(), memory[0]);
  if (configured.empty()) memory = memory_of_devices(rank, devices);
  if (!memory.empty()) return memory;
  if (!rank.parts().device.is_cpu() && !rank.parts().plan_request)
    return memory_of_accelerators(rank);
  const auto bytes = base::machine_memory();
  if (rank.parts().plan_request || bytes == 0) return memory;
  for (const auto of_stage : ranks) {
    const auto neighbours = rank.topology().group(Group::kLocal, of_stage).size();
    memory.push_back(bytes / static_cast<std::int64_t>(neighbours));
  }
  return memory;
}

/// Of each stage: as configured, or as the job runs.
std::vector<int> nodes_of_stages(const Rank& rank) {
  const auto ranks = rank.topology().group(Group::kPp);
  const int of_node = rank.config().stages_per_node;
  std::vector<int> nodes;
  std::map<int, int> numbers;  // of hosts, by their first rank
  for (int stage = 0; stage < static_cast<int>(ranks.size()); ++stage) {
    if (of_node > 0) {
      nodes.push_back(stage / of_node);
    } else if (rank.parts().plan_request) {
      nodes.push_back(0);
    } else {
      const int first = rank.topology().group(Group::kLocal, ranks[stage]).front();
      nodes.push_back(numbers.emplace(first, static_cast<int>(numbers.size())).first->second);
    }
  }
  return nodes;
}

/// Of each stage; -1: unbound, or not known.
std::vector<int> sockets_of_stages(const Rank& rank, const simulate::Machine& machine) {
  const bool elsewhere = rank.parts().plan_request || rank.config().stages_per_node > 0;
  if (elsewhere || machine.stages == 1 || !machine.devices.empty()) {
    return std::vector<int>(static_cast<std::size_t>(machine.stages), -1);
  }
  return gather_values(rank.groups().of(Group::kPp), base::bound_socket(), "sockets");
}

/// Whether ranks of one machine hand tensors over without a copy; of a job that is only planned,
/// whether they would.
bool lends_to_all(const Rank& rank) {
  const auto& config = rank.config();
  if (rank.parts().plan_request) return config.lend_tensors && config.transport != "mpi";
  const auto& routes = rank.channel().routes();
  const auto neighbours = rank.topology().group(Group::kLocal);
  return neighbours.size() > 1 &&
         std::all_of(neighbours.begin(), neighbours.end(), [&](int neighbour) {
           const GlobalRank peer(neighbour);
           return peer == routes.rank() || routes.loans(peer) != nullptr;
         });
}

/// True if replicas of a stage are on several machines. Where stages are given nodes, pipelines are
/// taken to have nodes of their own.
bool replicas_are_apart(const Rank& rank) {
  if (rank.config().stages_per_node > 0) return true;
  if (rank.parts().plan_request) return false;
  const auto& topology = rank.topology();
  const auto stages = topology.group(Group::kPp);
  return std::any_of(stages.begin(), stages.end(), [&](int of_stage) {
    const auto neighbours = topology.group(Group::kLocal, of_stage);
    const auto replicas = topology.group(Group::kRdp, of_stage);
    return !std::includes(neighbours.begin(), neighbours.end(), replicas.begin(), replicas.end());
  });
}

/// Whether ranks that share modules are on several machines.
bool sharers_are_apart(const Rank& rank) {
  if (rank.parts().plan_request) return false;
  const auto& topology = rank.topology();
  const auto neighbours = topology.group(Group::kLocal);
  const auto holders = topology.group(Group::kTp);
  return !std::includes(neighbours.begin(), neighbours.end(), holders.begin(), holders.end());
}

/// Ranks that sum gradients over one adapter of their machine, at about the same time.
int ranks_of_adapter(const Rank& rank) {
  const auto& config = rank.config();
  const int ranks = config.stages_per_node > 0
                        ? config.stages_per_node
                        : static_cast<int>(rank.topology().group(Group::kLocal).size());
  return (ranks + config.network_ports - 1) / config.network_ports;
}

/// Returns the bandwidth of copied tensors between ranks of a node.
double copied_bytes_per_second(const simulate::Machine& machine) {
  const auto& links = machine.direct_links;
  const double direct = links.empty() ? 0 : *std::min_element(links.begin(), links.end());
  return direct > 0 ? direct : kCopiedBytesPerSecond;
}

/// As if all parameters were slices where ranks share distributed modules: most of such models is.
simulate::Machine::Replicas replicas_of(const Rank& rank, const simulate::Machine& machine) {
  const auto& config = rank.config();
  simulate::Machine::Replicas replicas;
  if (rank.parts().plan_request || rank.groups().num_replicas() > 1) {
    replicas.count = rank.topology().rdp_size();
  }
  replicas.all_get_sums = !config.shard_optimizer_state;
  if (begins_sums_early(rank, machine)) replicas.bucket_bytes = rank.bucket_bytes();
  if (replicas_are_apart(rank)) {
    replicas.link = machine.network;
    replicas.link.bytes_per_second /= ranks_of_adapter(rank);
  } else {
    replicas.link = {machine.latency, copied_bytes_per_second(machine)};
  }
  return replicas;
}

simulate::Machine::Sharers sharers_of(const Rank& rank, const simulate::Machine& machine) {
  simulate::Machine::Sharers sharers;
  sharers.count = rank.topology().tp_size();
  sharers.handling = machine.handling;
  if (sharers_are_apart(rank)) {
    sharers.link = machine.network;
    sharers.link.bytes_per_second /= ranks_of_adapter(rank);
  } else {
    sharers.link = {machine.latency, copied_bytes_per_second(machine)};
  }
  return sharers;
}

/// Links the accelerators of one node directly.
void link_devices(simulate::Machine& machine) {
  for (const auto& name : machine.devices) {
    const auto* device = base::find_device(name);
    machine.direct_links.push_back(device->reached_bandwidth * device->link_bandwidth);
  }
}

}  // namespace

bool begins_sums_early(const Rank& rank, const simulate::Machine& machine) {
  if (!rank.config().overlapping_allreduce || !rank.parts().device.is_cpu()) return false;
  return std::all_of(machine.devices.begin(), machine.devices.end(),
                     [](const auto& device) { return device == base::devices().front().name; });
}

std::vector<simulate::Machine::Place> places_of(const std::vector<int>& nodes,
                                                const std::vector<int>& sockets, int ports) {
  std::map<int, int> seen;  // stages of a node
  std::vector<simulate::Machine::Place> places;
  bool apart = false;
  for (std::size_t stage = 0; stage < nodes.size(); ++stage) {
    const int node = nodes[stage];
    places.push_back({node, std::max(0, sockets[stage]), seen[node]++ % ports});
    apart |= node != nodes.front() || places.back().socket != places.front().socket;
  }
  if (!apart) places.clear();
  return places;
}

std::vector<simulate::Machine::Host> oversubscribed_hosts(const Topology& topology, double places,
                                                          const simulate::Machine& machine) {
  std::map<int, simulate::Machine::Host> by_first_rank;
  const auto ranks = topology.group(Group::kPp);
  for (int stage = 0; stage < static_cast<int>(ranks.size()); ++stage) {
    if (!computes_on_cores(machine, stage)) continue;
    const auto neighbours = topology.group(Group::kLocal, ranks[stage]);
    const auto busy =
        static_cast<double>(std::count_if(neighbours.begin(), neighbours.end(), [&](int neighbour) {
          return computes_on_cores(machine, topology.coordinates(neighbour).pp);
        }));
    if (busy <= places) continue;
    auto& host = by_first_rank[neighbours.front()];
    host.stages.push_back(stage);
    host.cores += places / busy;
  }
  std::vector<simulate::Machine::Host> hosts;
  hosts.reserve(by_first_rank.size());
  for (auto& [rank, host] : by_first_rank) hosts.push_back(std::move(host));
  return hosts;
}

namespace {

simulate::Machine machine_of_pipeline(Rank& rank) {
  const auto& config = rank.config();
  simulate::Machine machine;
  machine.stages = rank.topology().pp_size();
  machine.speeds = config.stage_speeds;
  machine.promised_outputs = rank.server().core().options.promised_outputs;
  machine.devices = base::split_devices(config.devices, static_cast<std::size_t>(machine.stages));
  link_devices(machine);
  const bool lends = lends_to_all(rank);
  if (lends) machine.bytes_per_second = kLentBytesPerSecond;
  machine.across_sockets = {machine.latency, kSocketShare * machine.bytes_per_second};
  machine.places =
      places_of(nodes_of_stages(rank), sockets_of_stages(rank, machine), config.network_ports);
  machine.network = {kNetworkLatency, config.network_gbit * 1e9 / 8};
  machine.memory = memory_of_stages(rank, machine.devices);
  if (rank.parts().cores > 0) {
    const double places = static_cast<double>(rank.parts().cores) / at::get_num_threads();
    machine.oversubscribed = oversubscribed_hosts(rank.topology(), places, machine);
  }
  if (config.trace_repeats > 0) return with_measured_messages(rank, machine, lends);
  if (!machine.oversubscribed.empty()) {
    machine.latency = machine.across_sockets.latency = kLatencyWithoutCore;
    machine.network.latency = std::max(machine.network.latency, kLatencyWithoutCore);
  }
  return machine;
}

}  // namespace

simulate::Machine job_machine(Rank& rank) {
  auto machine = machine_of_pipeline(rank);
  machine.replicas = replicas_of(rank, machine);
  machine.sharers = sharers_of(rank, machine);
  if (!rank.parts().plan_request) return machine;
  if (const auto cluster = planned_cluster(rank.topology())) {
    place_on(*cluster, rank.topology(), machine);
  }
  return machine;
}

}  // namespace smp
